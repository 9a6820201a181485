"""Incidents, and how fast error budgets burn."""
