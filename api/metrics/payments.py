"""Shows the number of items waiting for the payment provider or for a person on /metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from api.metrics.polled import PolledCollector
from billing.payments.repository import SendingQueue
from db.session import EVERY_TENANT, Database

STATES = ("pending", "manual")


class PaymentsCollector(PolledCollector):
    problem = "cannot count what waits for the payment provider"

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self._counts: dict[str, int] = {}

    async def ask(self) -> None:
        async with self._database.read(EVERY_TENANT) as session:
            queue = SendingQueue(session)
            self._counts = {state: await queue.count(state) for state in STATES}

    def collect(self) -> Iterator[Metric]:
        waiting = GaugeMetricFamily(
            "rootstock_payments_waiting",
            "Meter events and documents on their way to the payment provider, and those that need a person.",
            labels=["state"],
        )
        for state, count in self._counts.items():
            waiting.add_metric([state], count)
        yield waiting
