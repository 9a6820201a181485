"""Search over sections, adapters, keys and projects."""
