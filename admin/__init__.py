"""The web console: pages for a tenant's members, and for the operators of the service."""
