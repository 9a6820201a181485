"""Versions of the price list."""
