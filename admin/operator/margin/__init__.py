"""Revenue and serving cost of a month."""
