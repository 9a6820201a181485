"""Stores which tokens of other issuers, such as CI systems, an organization accepts, and for which keys."""
