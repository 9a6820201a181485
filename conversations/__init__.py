"""Stored state of the Responses API: responses, background responses, conversations and their items."""
