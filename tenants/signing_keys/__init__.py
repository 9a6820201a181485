"""Manages the public keys that organizations sign their adapters with."""
