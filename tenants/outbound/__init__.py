"""Makes requests to addresses that tenants name, but only to public ones."""
