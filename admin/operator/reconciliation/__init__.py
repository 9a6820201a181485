"""Reconciliation of usage and money records."""
