"""Stored responses: their input and output, chains of them, and look-up of single items."""
