"""Serves the settings of signed adapters: public keys, and whether uploads must be signed."""
