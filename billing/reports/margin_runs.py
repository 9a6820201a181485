"""The margin's report, made beside the requests of whoever waits for it: it looks through a month's requests.

Owns that a question is worked on once, how far that is, and how long an answer is good for. All of it lies in
Redis: any process may be asked, and one that dies leaves a question that is soon taken up again.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

import msgspec
import redis.asyncio

from billing.errors import InvalidReportQuery
from billing.reports.margin import MarginReports
from db.errors import DatabaseUnavailable

logger = logging.getLogger(__name__)

ALIVE_S = 30
"""Seconds for which whoever works on a question holds it between two words."""
FINAL_S, RUNNING_S = 24 * 3600, 120
"""How long an answer is good for, of a month that is over and of this one."""


class MarginRun(msgspec.Struct, frozen=True):
    """A question, and how far the answer is."""

    num_done: int = 0
    num_days: int = 0
    report: dict[str, Any] | None = None
    """As `Margin.as_json`, once it is there."""
    why_not: str = ""


class MarginRuns:
    """Of this process. Tasks end with it."""

    def __init__(self, reports: MarginReports, client: redis.asyncio.Redis) -> None:
        self._reports = reports
        self._redis = client
        self._tasks: set[asyncio.Task[None]] = set()

    async def look(self, month: str, gpu_hour_price: int, num_gpus: int | None) -> MarginRun:
        """The answer, or how far it is: the first to ask has it worked on. Raises InvalidReportQuery."""
        place = f"rootstock:billing:margin:{month[:7]}:{gpu_hour_price}:{num_gpus}"
        raw = await self._redis.get(place)
        if raw is not None:
            return msgspec.json.decode(raw, type=MarginRun)
        begun = MarginRun()
        if await self._redis.set(place, msgspec.json.encode(begun), ex=ALIVE_S, nx=True):
            task = asyncio.create_task(self._work(place, month, gpu_hour_price, num_gpus))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return begun

    async def _work(self, place: str, month: str, gpu_hour_price: int, num_gpus: int | None) -> None:
        async def tell(run: MarginRun, seconds: int = ALIVE_S) -> None:
            await self._redis.set(place, msgspec.json.encode(run), ex=seconds)

        async def heard(done: int, days: int) -> None:
            await tell(MarginRun(done, days))

        now = datetime.now(UTC)
        try:
            report = await self._reports.report(
                month, gpu_hour_price, now=now, num_gpus=num_gpus, heard=heard
            )
        except (InvalidReportQuery, DatabaseUnavailable) as error:
            logger.warning("no margin of %s: %s", month, error)
            await tell(MarginRun(why_not=str(error)), 5)
        else:
            is_over = f"{now:%Y-%m}" != month
            await tell(MarginRun(report=report.as_json()), FINAL_S if is_over else RUNNING_S)
