"""Shows on /metrics how many batches this process runs, and how their lines ended."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

OUTCOMES = ("completed", "failed", "expired", "cancelled")


class BatchMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.running = Gauge(
            "rootstock_batches_running", "Batches that this process runs.", registry=registry
        )
        self._lines = Counter(
            "rootstock_batch_lines", "Lines of batches by how they ended.", ["outcome"], registry=registry
        )
        self.leases_lost = Counter(
            "rootstock_batch_leases_lost",
            "Batches that another process took over while this one ran them.",
            registry=registry,
        )
        for outcome in OUTCOMES:
            self._lines.labels(outcome)

    def ended(self, outcome: str, num_lines: int = 1) -> None:
        self._lines.labels(outcome).inc(num_lines)
