"""Which numbered usage events the ledger has taken in, and which are missing."""
