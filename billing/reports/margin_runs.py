"""Computes margin reports in the background, because they read all requests of a month.

A report is computed once, and its progress and result are kept in Redis for a while: any process may be
asked, and if the process that computes it dies, another soon starts again.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import redis.asyncio
import structlog

from billing.errors import InvalidReportQuery
from billing.reports.margin import MarginReports
from db.errors import DatabaseUnavailable

log = structlog.get_logger(__name__)

ALIVE_S = 30
"""Seconds for which a process holds a report between two reports of progress."""
FINAL_S, RUNNING_S = 24 * 3600, 120
"""Seconds for which a result is kept: of a past month, and of the current one."""


class MarginRun(msgspec.Struct, frozen=True):
    """The progress of a report, and its result."""

    num_done: int = 0
    num_days: int = 0
    report: dict[str, Any] | None = None
    """`Margin.as_json`, once it is computed."""
    why_not: str = ""


class MarginRuns:
    """Computes reports in this process, in tasks that end with it."""

    def __init__(self, reports: MarginReports, client: redis.asyncio.Redis) -> None:
        self._reports = reports
        self._redis = client
        self._tasks: set[asyncio.Task[None]] = set()

    async def look(self, month: str, gpu_hour_price: int, num_gpus: int | None) -> MarginRun:
        """Returns the report or its progress; the first call starts it. Raises InvalidReportQuery."""
        key = f"rootstock:billing:margin:{month[:7]}:{gpu_hour_price}:{num_gpus}"
        raw = await self._redis.get(key)
        if raw is not None:
            return msgspec.json.decode(raw, type=MarginRun)
        started = MarginRun()
        if await self._redis.set(key, msgspec.json.encode(started), ex=ALIVE_S, nx=True):
            task = asyncio.create_task(self._work(key, month, gpu_hour_price, num_gpus))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return started

    async def _work(self, key: str, month: str, gpu_hour_price: int, num_gpus: int | None) -> None:
        async def save(run: MarginRun, seconds: int = ALIVE_S) -> None:
            await self._redis.set(key, msgspec.json.encode(run), ex=seconds)

        async def on_progress(done: int, days: int) -> None:
            await save(MarginRun(done, days))

        now = datetime.now(UTC)
        try:
            report = await self._reports.report(
                month, gpu_hour_price, now=now, num_gpus=num_gpus, on_progress=on_progress
            )
        except (InvalidReportQuery, DatabaseUnavailable) as error:
            log.warning("margin cannot be computed", month=month, error=str(error))
            await save(MarginRun(why_not=str(error)), 5)
        else:
            is_over = f"{now:%Y-%m}" != month
            await save(MarginRun(report=report.as_json()), FINAL_S if is_over else RUNNING_S)
