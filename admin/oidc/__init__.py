"""Signing in by another provider: OpenID Connect, authorization code with PKCE."""
