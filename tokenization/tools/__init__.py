"""Reads and constrains function calls in the formats that model families were trained on.

Each format has a module: `llama`, `hermes`, `qwen_coder`, `mistral`, `mistral_args`. `formats` chooses one.
"""
