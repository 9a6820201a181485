"""The batches section: the list, one batch with its progress and cost, and its files."""
