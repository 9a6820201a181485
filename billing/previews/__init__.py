"""Previews what other prices or another plan would have cost tenants."""
