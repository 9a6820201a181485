"""Measures performance and durability: commands `python -m benchmarks.<name>` that write one JSON each."""
