"""Incidents of the service, from beginning to end, with notes for operators and tenants."""
