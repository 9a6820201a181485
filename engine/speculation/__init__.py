"""Proposes drafts that grammars force, texts suggest or draft adapters guess, where verifying them is expected
to save time."""
