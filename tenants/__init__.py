"""Manages tenants: API keys, users, projects, plans, limits and the audit log."""
