"""Finds out how a base model delimits its thinking, and writes what begins and ends it."""
