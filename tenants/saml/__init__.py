"""Signing in with SAML 2.0: an organization's identity provider, its messages, and the members they name."""
