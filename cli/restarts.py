"""Counts the restarts of supervised processes in Redis, where the API's /metrics reads them.

Counts that Redis does not accept (it may be the process that restarted) are kept and added later.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable

from redis.asyncio import Redis
from redis.exceptions import RedisError

from api.metrics.restarts import RESTARTS_KEY
from telemetry.tasks import discard

_RETRY_S = 1.0


class RestartCounter:
    """Counts restarts by process. All methods must be called on one event loop."""

    def __init__(self, redis_url: Callable[[], str]) -> None:
        """`redis_url` is called at each attempt: the URL is known once Redis has started."""
        self._redis_url = redis_url
        self._pending = Counter[str]()
        self._sending: asyncio.Task[None] | None = None

    def begin(self, processes: Iterable[str]) -> None:
        """Exports the processes with their counts so far: Prometheus sees no increase in a series that starts
        with it.
        """
        for process in processes:
            self._add(process, 0)

    def restarted(self, process: str) -> None:
        self._add(process, 1)

    async def close(self) -> None:
        """Drops counts that could not be sent."""
        await discard(self._sending)

    def _add(self, process: str, count: int) -> None:
        self._pending[process] += count
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send(), name="count restarts")

    async def _send(self) -> None:
        while self._pending:
            process, count = self._pending.popitem()
            try:
                async with Redis.from_url(self._redis_url(), socket_timeout=2) as redis:
                    await redis.hincrby(RESTARTS_KEY, process, count)
            except RedisError:
                self._pending[process] += count  # others may have been counted since
                await asyncio.sleep(_RETRY_S)
