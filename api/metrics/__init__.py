"""Prometheus collectors of the API process: what /metrics shows besides its own counters."""
