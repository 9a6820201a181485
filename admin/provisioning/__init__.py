"""The page of provisioning: tokens of the identity provider, and roles of its groups."""
