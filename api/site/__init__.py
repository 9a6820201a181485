"""Serves what people read: the landing page, the documentation site and the API reference."""
