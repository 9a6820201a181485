"""Shows on /metrics which batches and background responses of the whole service have not ended, and how
background responses of this process ended.

Every API process shows the same gauges: alerts and charts take the largest.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric

from api.metrics.polled import PolledCollector
from batches.repository import BatchBacklog, BatchLeases
from conversations.background.repository import BackgroundRows, ResponseBacklog
from db.session import EVERY_TENANT, Database

OUTCOMES = ("completed", "incomplete", "failed")


class BackgroundResponseMetrics:
    """Counts what one process does for background responses."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ended = Counter(
            "rootstock_background_responses_ended",
            "Background responses of this process by how they ended.",
            ["outcome"],
            registry=registry,
        )
        self.resumed = Counter(
            "rootstock_background_responses_resumed",
            "Background responses that this process took over from one that ended or stalled.",
            registry=registry,
        )
        for outcome in OUTCOMES:
            self._ended.labels(outcome)

    def ended(self, outcome: str) -> None:
        self._ended.labels(outcome).inc()


class BackgroundWorkCollector(PolledCollector):
    problem = "cannot count batches and background responses"

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self._batches: BatchBacklog | None = None
        self._responses: ResponseBacklog | None = None

    async def ask(self) -> None:
        async with self._database.read(EVERY_TENANT) as session:
            self._batches = await BatchLeases(session).backlog()
            self._responses = await BackgroundRows(session).backlog()

    def collect(self) -> Iterator[Metric]:
        if self._batches is not None:
            yield _by_status(
                "rootstock_batches_open", "Batches that have not ended.", self._batches.by_status
            )
            yield GaugeMetricFamily(
                "rootstock_batch_lines_waiting",
                "Lines without a result, of batches that run.",
                self._batches.num_lines,
            )
            yield GaugeMetricFamily(
                "rootstock_batch_oldest_seconds",
                "Age of the oldest batch that has not ended.",
                self._batches.oldest_seconds,
            )
            yield GaugeMetricFamily(
                "rootstock_batch_window_left_seconds",
                "Seconds until the first batch that has not ended expires; 86400 without any.",
                self._batches.window_left_seconds,
            )
        if self._responses is not None:
            yield _by_status(
                "rootstock_background_responses_open",
                "Background responses that have not ended.",
                self._responses.by_status,
            )
            yield GaugeMetricFamily(
                "rootstock_background_response_oldest_seconds",
                "Age of the oldest background response that has not ended.",
                self._responses.oldest_seconds,
            )


def _by_status(name: str, text: str, counts: dict[str, int]) -> Metric:
    found = GaugeMetricFamily(name, text, labels=["status"])
    for status, count in counts.items():
        found.add_metric([status], count)
    return found
