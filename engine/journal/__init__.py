"""Journals what each request owes, and keeps it through crashes until the ledger has it."""
