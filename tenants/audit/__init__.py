"""Records every change of a tenant's account in an append-only, hash-chained log."""
