"""Measures the free disk space of the object store's directory and of the engine's data directory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.protocol import EngineStats
from telemetry.disk import DiskSpace, disk_space


class DiskCollector(Collector):
    """Measured at each scrape. A directory whose file system does not answer is left out."""

    def __init__(self, objects: Path, stats: Callable[[], EngineStats | None]) -> None:
        """`objects`: where this process keeps tenants' files, or those on their way to a bucket."""
        self._objects = objects
        self._stats = stats

    def describe(self) -> list[Metric]:
        """Returns nothing: the engine may not have answered yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        free = GaugeMetricFamily(
            "rootstock_disk_free_bytes",
            "Free disk space of the object store's directory and of the engine's data directory.",
            labels=["directory"],
        )
        size = GaugeMetricFamily(
            "rootstock_disk_size_bytes", "Size of the same file systems.", labels=["directory"]
        )
        for directory, space in self._spaces().items():
            free.add_metric([directory], space.free_bytes)
            size.add_metric([directory], space.total_bytes)
        yield free
        yield size

    def _spaces(self) -> dict[str, DiskSpace]:
        spaces = {}
        with contextlib.suppress(OSError):
            spaces["objects"] = disk_space(self._objects)
        stats = self._stats()
        if stats is not None and stats.disk_total_bytes:
            spaces["engine"] = DiskSpace(stats.disk_free_bytes, stats.disk_total_bytes)
        return spaces
