"""Proposes drafts from grammars, texts and draft adapters, where verifying them is expected to save time."""
