"""Keeps what clients name their requests with (`user`, `safety_identifier`, `metadata`), for receipts."""
