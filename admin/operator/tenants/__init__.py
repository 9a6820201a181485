"""Tenants: the list, one tenant, and opening a tenant's console."""
