"""Benchmarks: plain commands, `python -m benchmarks.<name> --out FILE`, that write one JSON each."""
