"""Shows on /metrics how many requests have lost the metadata that their clients gave them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from billing.request_metadata.recorder import MetadataRecorder


class MetadataCollector(Collector):
    def __init__(self, recorder: MetadataRecorder) -> None:
        self._recorder = recorder

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "rootstock_request_metadata_dropped",
            "Requests whose metadata was dropped, because too much of it waited to be sent to Redis.",
            self._recorder.num_dropped,
        )
