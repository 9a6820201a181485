"""Plans, and which tenant is on which."""
