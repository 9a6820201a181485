"""The 4-bit linear in Triton."""
