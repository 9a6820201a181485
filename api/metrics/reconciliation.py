"""Shows the last reconciliation's results on /metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from api.metrics.polled import PolledCollector
from billing.reconciliation.differences import NOT_THERE, Report
from billing.reconciliation.service import ReconciliationService


class BooksCollector(PolledCollector):
    problem = "cannot read the last reconciliation"

    def __init__(self, reconciliations: ReconciliationService) -> None:
        super().__init__()
        self._reconciliations = reconciliations
        self._latest: Report | None = None

    async def ask(self) -> None:
        self._latest = await self._reconciliations.latest()

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
        waiting = GaugeMetricFamily(
            "rootstock_reconciliation_on_its_way",
            "Requests whose usage was on engines' disks, and not yet late, at the last reconciliation.",
            labels=["check"],
        )
        for check, outcome in report.outcomes.items():
            if outcome.why_not.startswith(NOT_THERE):
                continue
            failed.add_metric([check], float(bool(outcome.why_not)))
            if not outcome.why_not:
                differences.add_metric([check], outcome.differences)
            if check == "spools":
                waiting.add_metric([check], outcome.on_its_way)
        yield differences
        yield waiting
        yield failed
        yield GaugeMetricFamily(
            "rootstock_reconciliation_timestamp_seconds",
            "When the last reconciliation ended.",
            report.ended_at.timestamp(),
        )
