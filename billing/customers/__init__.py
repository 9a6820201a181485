"""Reports usage and spend of tenants side by side, for the operator."""
