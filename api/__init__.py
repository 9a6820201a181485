"""Serves the HTTP API: OpenAI-compatible inference, and the management of adapters and accounts."""
