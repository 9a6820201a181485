"""Serves SCIM 2.0 to the identity providers of organizations."""
