"""Defines and stores limits of tenants, projects and keys. `tenants.quotas` enforces them."""
