"""Publishes packed adapters in the object store under their digest, and fetches them to engines' hosts."""
