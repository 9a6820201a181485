"""Manages a tenant's users, their roles in projects, and invitations."""
