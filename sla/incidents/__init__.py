"""Incidents: what went wrong, from when to when, and what is said of it."""
