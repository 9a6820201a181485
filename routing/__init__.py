"""Chooses the replica that runs a request, where one service has several engines.

`router`, `placement`, `demand`, `prefixes` and `views` are plain Python without input or output: they are
given the time, and a simulation runs them as they are. `replica_set` connects an API process to its engines.
"""
