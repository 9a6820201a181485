"""Rotates the key secret: counts what still needs the other one, reseals rows, and records rotations."""
