"""The last reconciliation's counts, shown on this process's /metrics.

Owns the metrics' names, and how often the database is asked: what a scrape shows is at most that old. While
it cannot be asked, the last answer stays.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import structlog
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from billing.reconciliation.differences import NOT_THERE, Report
from billing.reconciliation.service import ReconciliationService
from db.errors import DatabaseUnavailable

log = structlog.get_logger(__name__)

ASK_EVERY = 15.0
ANSWER_WITHIN = 2.0


class BooksCollector(Collector):
    """`refresh` before a scrape."""

    def __init__(self, reconciliations: ReconciliationService) -> None:
        self._reconciliations = reconciliations
        self._latest: Report | None = None
        self._asked_at = float("-inf")

    async def refresh(self) -> None:
        now = time.monotonic()
        if now < self._asked_at + ASK_EVERY:
            return
        self._asked_at = now
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                self._latest = await self._reconciliations.latest()
        except (TimeoutError, DatabaseUnavailable) as error:
            log.warning("the last reconciliation cannot be read", reason=str(error))

    def describe(self) -> list[Metric]:
        """Nothing beforehand: there may be none yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        report = self._latest
        if report is None:
            return
        differences = GaugeMetricFamily(
            "rootstock_reconciliation_differences",
            "Differences between two books that the last reconciliation found.",
            labels=["check"],
        )
        failed = GaugeMetricFamily(
            "rootstock_reconciliation_not_compared",
            "1 where the last reconciliation could not compare what there is.",
            labels=["check"],
        )
        for check, outcome in report.outcomes.items():
            if outcome.why_not.startswith(NOT_THERE):
                continue
            failed.add_metric([check], float(bool(outcome.why_not)))
            if not outcome.why_not:
                differences.add_metric([check], outcome.differences)
        yield differences
        yield failed
        yield GaugeMetricFamily(
            "rootstock_reconciliation_timestamp_seconds",
            "When the last reconciliation ended.",
            report.ended_at.timestamp(),
        )
