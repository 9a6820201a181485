"""Files that tenants upload, whole or in parts."""
