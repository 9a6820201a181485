"""What is on its way to the payment provider and what waits for a person, shown on this process's /metrics.

Owns the metrics' names. The database is asked seldom: what a scrape shows is at most that old, and while it
cannot be asked, the last answer stays.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import structlog
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from billing.payments.repository import SendingQueue
from db.errors import DatabaseUnavailable
from db.session import EVERY_TENANT, Database

log = structlog.get_logger(__name__)

ASK_EVERY = 15.0
ANSWER_WITHIN = 2.0
STATES = ("pending", "manual")


class PaymentsCollector(Collector):
    """`refresh` before a scrape."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._counts: dict[str, int] = {}
        self._asked_at = float("-inf")

    async def refresh(self) -> None:
        now = time.monotonic()
        if now < self._asked_at + ASK_EVERY:
            return
        self._asked_at = now
        try:
            async with asyncio.timeout(ANSWER_WITHIN), self._database.read(EVERY_TENANT) as session:
                queue = SendingQueue(session)
                self._counts = {state: await queue.count(state) for state in STATES}
        except (TimeoutError, DatabaseUnavailable) as error:
            log.warning("what waits for the payment provider cannot be counted", reason=str(error))

    def describe(self) -> list[Metric]:
        """Nothing beforehand."""
        return []

    def collect(self) -> Iterator[Metric]:
        waiting = GaugeMetricFamily(
            "rootstock_payments_waiting",
            "Meter events and credits on their way to the payment provider, and those that need a person.",
            labels=["state"],
        )
        for state, count in self._counts.items():
            waiting.add_metric([state], count)
        yield waiting
