"""Comparison of every book of usage and money with the one before it."""
