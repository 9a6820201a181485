"""Collects what an auditor asks of access, secrets, restores and the audit log, of all tenants."""
