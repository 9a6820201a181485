"""SiLU-and-multiply in Triton, with what adapters add."""
