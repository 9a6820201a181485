"""Calibration: measures whether an adapter works on the quantised base, before it serves.

The engine that will serve the adapter (`serving`) and the unquantised base with the uploaded adapter
(`reference`) score the same samples (`samples`); the scores are compared (`measures`), judged (`gate`) and
reported (`report`). `run` does all of it and can be interrupted and resumed anywhere. Only `reference` and
its importers load torch.
"""
