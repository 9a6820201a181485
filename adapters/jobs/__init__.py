"""Jobs on adapters: long work that survives whoever does it."""
