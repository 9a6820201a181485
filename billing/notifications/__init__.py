"""Telling tenants what happened: written with what it tells of, then delivered by webhook and e-mail."""
