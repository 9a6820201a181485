"""Stores what identity providers say of users and groups (SCIM 2.0)."""
