"""Finds out whether a tenant has any usage in a budget's window; most new tenants have none."""
