"""Batches: files of requests that run in the background at a price of their own."""
