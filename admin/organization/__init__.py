"""The settings section: what holds for the whole organization."""
