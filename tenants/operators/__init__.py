"""Who runs the service: its own users, and how they look into a tenant's console as one of its members."""
