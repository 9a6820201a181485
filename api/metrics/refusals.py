"""Shows on /metrics how many refused requests are missing from the tenants' lists."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from tenants.refusals.recorder import RefusalRecorder


class RefusalCollector(Collector):
    def __init__(self, recorder: RefusalRecorder) -> None:
        self._recorder = recorder

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "rootstock_refused_requests_dropped",
            "Refused requests that were counted but not listed, because too many waited to be sent to Redis.",
            self._recorder.num_dropped,
        )
