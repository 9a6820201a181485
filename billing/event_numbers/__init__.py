"""Tracks which numbered usage events the ledger contains, and which are missing."""
