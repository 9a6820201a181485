"""The inference engine: one process per device, a quantized base model and the adapters grafted on it.

Its public face is `engine.protocol` (messages), `engine.client` (asyncio), `engine.vocabulary` (token bytes)
and `engine.lora.artifact` (the packed adapter). Nothing above the engine imports anything else of it.
"""
