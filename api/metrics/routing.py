"""Shows on /metrics to which replicas this process routes requests, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from routing.replica_set import ReplicaSet


class RoutingCollector(Collector):
    def __init__(self, pools: Sequence[ReplicaSet]) -> None:
        self._pools = pools

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "rootstock_engine_takes_requests",
            "1 while this process routes requests to the engine, 0 while the engine loads the adapters it "
            "begins with, drains, is left out, or computes prompts for others.",
            labels=["replica"],
        )
        takes_requests: dict[str, bool] = {}
        for pool in self._pools:
            for replica, takes in pool.takes_requests().items():
                takes_requests[replica] = takes_requests.get(replica, False) or takes  # a series comes once
        for replica, takes in sorted(takes_requests.items()):
            family.add_metric([replica], float(takes))
        yield family
        routed = CounterMetricFamily(
            "rootstock_routed",
            "Requests that this process routed, by replica and why it was chosen: it has the adapter, the "
            "prefix, the session or the shortest wait, is less late than the first choice, or the only one.",
            labels=["replica", "reason"],
        )
        for pool in self._pools:
            for (replica, reason), number in sorted(pool.counts.chosen.copy().items()):
                routed.add_metric([replica, reason], number)
        yield routed
        yield CounterMetricFamily(
            "rootstock_rerouted",
            "Requests that a draining replica rejected and another one took.",
            sum(pool.counts.rerouted for pool in self._pools),
        )
