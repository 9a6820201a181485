"""Serves the OpenAI-compatible inference endpoints."""
