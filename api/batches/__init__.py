"""Batches over HTTP, and the part of an API process that runs their lines."""
