"""The usage journal: what each request owes, kept through crashes until the ledger has it."""
