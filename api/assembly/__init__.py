"""Builds an API process's services from its settings, starts them, and closes them."""
