"""Whether an adapter does on the quantised base what it was trained to do, measured before it serves.

The tenant's samples (`samples`) are scored by the engine that will serve them (`serving`) and by the
unquantised base with the adapter as it was uploaded (`reference`); the two are compared (`measures`), judged
(`gate`) and shown (`report`). `run` does all of it, so that it can be interrupted and gone on with anywhere.
Torch is loaded by `reference` and by what imports it alone.
"""
