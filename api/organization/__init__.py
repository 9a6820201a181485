"""Serves `/v1/organization`: keys, users, projects, limits and the audit log."""
