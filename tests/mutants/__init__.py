"""Planted defects: whether the tests notice them. `python -m tests.mutants --help`; lists in `*.toml`."""
