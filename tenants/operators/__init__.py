"""Manages the service's operators, their views of tenants, and impersonation of tenants' members."""
