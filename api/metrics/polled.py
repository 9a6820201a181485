"""Metrics that the database or Redis is asked for: seldom, so that what a scrape shows is at most that old.
While it cannot be asked, the last answer stays.

Owns how often. Refuses to know what is asked.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod

import structlog
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from redis.exceptions import RedisError

from db.errors import DatabaseUnavailable

log = structlog.get_logger(__name__)

ASK_EVERY = 15.0
ANSWER_WITHIN = 2.0


class PolledCollector(Collector):
    """`refresh` before a scrape. `problem` is what the log says when there is no answer."""

    problem: str

    def __init__(self) -> None:
        self._asked_at = float("-inf")

    async def refresh(self) -> None:
        now = time.monotonic()
        if now < self._asked_at + ASK_EVERY:
            return
        self._asked_at = now
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                await self.ask()
        except (TimeoutError, DatabaseUnavailable, RedisError) as error:
            log.warning(self.problem, reason=str(error))

    @abstractmethod
    async def ask(self) -> None:
        """Keep what `collect` shows. Raises DatabaseUnavailable, RedisError."""

    def describe(self) -> list[Metric]:
        """Nothing beforehand: there may be none yet."""
        return []
