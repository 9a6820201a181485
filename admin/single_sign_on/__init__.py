"""The page of single sign-on: the organization's identity provider, by SAML 2.0."""
