"""The operator's audit log over all tenants."""
