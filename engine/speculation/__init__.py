"""Proposes drafts from texts that were seen before, where verifying them is expected to save time."""
