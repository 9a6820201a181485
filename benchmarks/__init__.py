"""Measures performance and durability: commands `python -m benchmarks.<name> --out FILE` that write one JSON
each.
"""
