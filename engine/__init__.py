"""Serves one base model and the adapters grafted on it: one engine process per device.

The packages above it import `engine.protocol` (messages), `engine.client` (asyncio client),
`engine.vocabulary` (token bytes) and `engine.lora.artifact` (the packed adapter), and nothing else of it.
"""
