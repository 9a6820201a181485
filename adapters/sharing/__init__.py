"""Stores which adapters are offered to and shared with other organizations; `adapters.shares` changes it."""
