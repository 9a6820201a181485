"""Checks grammars for structured outputs in processes that the kernel ends at their limits."""
