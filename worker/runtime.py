"""What tasks run on: one event loop, one database pool and one Redis client per process, made at first use.

Services are asynchronous, Celery's processes are not: each runs one task at a time, so a loop that lives as
long as its process keeps connections open between tasks.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Coroutine
from typing import Any, TypeVar

import redis.asyncio

from billing.metering import JournalMeter
from db.session import Database
from db.settings import DatabaseSettings
from worker.settings import WorkerSettings

T = TypeVar("T")


class Runtime:
    """Of one process: made in the parent, opened by the child that first runs a task."""

    def __init__(self, settings: WorkerSettings, database: DatabaseSettings) -> None:
        self.settings = settings
        self._database_settings = database
        self._runner: asyncio.Runner | None = None
        self._pid = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on this process's loop and return what it returns."""
        self._open()
        assert self._runner is not None
        return self._runner.run(work)

    def _open(self) -> None:
        if self._pid == os.getpid():
            return
        # A forked child must not touch its parent's loop and sockets, were there any.
        self._pid = os.getpid()
        self._runner = asyncio.Runner()
        self.database = Database(
            self._database_settings.url,
            pool_size=1,
            pool_overflow=1,
            pool_timeout=self._database_settings.pool_timeout,
            statement_timeout=self._database_settings.statement_timeout,
        )
        self.redis = redis.asyncio.Redis.from_url(
            self.settings.redis_url, socket_timeout=10, socket_connect_timeout=5, health_check_interval=10
        )
        self.meter = JournalMeter(
            self.database,
            self.redis,
            f"{socket.gethostname()}:{self._pid}",
            batch_size=self.settings.meter_batch,
            stale_after=self.settings.meter_stale_after,
        )

    def close(self) -> None:
        """Give connections back. Opening again is possible."""
        if self._pid != os.getpid() or self._runner is None:
            return
        self._runner.run(self._close())
        self._runner.close()
        self._runner = None
        self._pid = 0

    async def _close(self) -> None:
        await self.redis.aclose()
        await self.database.close()
