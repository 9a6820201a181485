"""Signing in with an organization's identity provider by SAML 2.0."""
