"""Onboarding jobs of all tenants."""
