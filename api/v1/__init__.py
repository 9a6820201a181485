"""Serves the other routes below `/v1`: adapters, files, jobs, usage, billing and webhooks."""
