"""Polls the database or Redis for metrics, at most every 15 seconds.

Scrapes in between, and while the source is unavailable, show the last values.
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
    """Collector whose `refresh` is called before a scrape. `problem`: log message if the source is
    unavailable.
    """

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
            log.warning(self.problem, error=str(error))

    @abstractmethod
    async def ask(self) -> None:
        """Fetches what `collect` shows. Raises DatabaseUnavailable, RedisError."""

    def describe(self) -> list[Metric]:
        """Returns nothing: there may be no values yet."""
        return []
