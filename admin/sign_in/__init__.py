"""Signing in and out: passwords, second factors, identity providers, invitations and password resets."""
