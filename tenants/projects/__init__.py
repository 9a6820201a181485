"""Manages a tenant's projects and their service accounts."""
