"""Provisions users and groups for a tenant's identity provider (SCIM 2.0)."""
