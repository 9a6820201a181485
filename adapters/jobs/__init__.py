"""Jobs on adapters: long work that survives the crash of its worker."""
