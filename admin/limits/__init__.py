"""The limits section: limits on usage, and spend alerts."""
