"""Publishes base models in the object store under their digest, and fetches them to hosts that lack them."""
