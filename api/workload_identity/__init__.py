"""Verifies tokens of other issuers, and exchanges them for short-lived API keys (RFC 8693)."""
