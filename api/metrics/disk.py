"""Measures the free disk space of the object store's directory and of the engines' data directories."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.protocol import EngineStats
from telemetry.disk import DiskSpace, disk_space


class DiskCollector(Collector):
    """Measured at each scrape. A directory whose file system does not answer is left out."""

    def __init__(self, objects: Path, stats: Callable[[], Iterable[EngineStats]]) -> None:
        """`objects`: where this process keeps tenants' files, or those on their way to a bucket. `stats`: the
        engines' latest.
        """
        self._objects = objects
        self._stats = stats

    def describe(self) -> list[Metric]:
        """Returns nothing: the engine may not have answered yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        free = GaugeMetricFamily(
            "rootstock_disk_free_bytes",
            "Free disk space of the object store's directory and of the engines' data directories.",
            labels=["directory", "replica"],
        )
        size = GaugeMetricFamily(
            "rootstock_disk_size_bytes", "Size of the same file systems.", labels=["directory", "replica"]
        )
        for labels, space in self._spaces():
            free.add_metric(labels, space.free_bytes)
            size.add_metric(labels, space.total_bytes)
        yield free
        yield size

    def _spaces(self) -> Iterator[tuple[tuple[str, str], DiskSpace]]:
        """Yields labels and space of each directory; the object store's is no replica's."""
        with contextlib.suppress(OSError):
            yield ("objects", ""), disk_space(self._objects)
        latest = {stats.engine_id: stats for stats in self._stats()}
        for stats in latest.values():
            if stats.disk_total_bytes:
                space = DiskSpace(stats.disk_free_bytes, stats.disk_total_bytes)
                yield ("engine", stats.engine_id), space
