"""Routing by counts: what replicas load when requests go to homes, and when they go anywhere."""

from __future__ import annotations

from benchmarks.cluster import Load, compare
from benchmarks.cluster_replicas import null_engines

# So long a step that what replicas load does not depend on how fast this machine is.
LOAD = Load(requests=1500)
ENGINES = null_engines(0.02, LOAD.rows, LOAD.slots)


def test_the_router_loads_a_fifth_of_what_random_choices_load() -> None:
    routed, random = compare(LOAD, ENGINES, ("router", "random"))
    assert routed.requests == random.requests == LOAD.requests
    assert 5 * routed.loads <= random.loads, (routed, random)
    assert routed.loads >= LOAD.adapters * 0.9, "nearly every adapter was in demand"
    assert max(routed.by_replica.values()) < 0.6 * LOAD.requests, "and no replica has most of the work"
