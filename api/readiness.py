"""Checks readiness for /readyz: the schema is one that this release serves, Redis takes writes, disks have
room, and the engine serves the same base model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

import redis.asyncio
import structlog
from redis.exceptions import ResponseError

from api.pools import Pools
from db.errors import DatabaseUnavailable, UnusableDatabase
from db.schema import assert_fit_to_serve
from db.session import Database
from engine.protocol import EngineStats
from telemetry.disk import DiskSpace, disk_space, shortage

log = structlog.get_logger(__name__)

_PROBE_KEY = "rootstock:readiness"
_PROBE_TTL = 60


class RedisWritable:
    """Redis takes a write. A replica, a full Redis and one with a full disk answer a PING, too."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client

    async def check(self) -> str | None:
        try:
            await self._client.set(_PROBE_KEY, b"1", ex=_PROBE_TTL)
        except ResponseError as error:
            return f"refuses writes: {error}"
        return None


class LocalDisk:
    """The file system that this process keeps tenants' files on has room."""

    def __init__(self, directory: Path, min_free_bytes: int) -> None:
        self._directory = directory
        self._min_free_bytes = min_free_bytes

    async def check(self) -> str | None:
        space = await asyncio.to_thread(disk_space, self._directory)
        return shortage(space, self._min_free_bytes)


class EngineDisk:
    """The file system of an engine's usage spool has room, by the engines' latest heartbeats. While one
    engine's has, requests can be served.
    """

    def __init__(self, stats: Callable[[], Iterable[EngineStats]], min_free_bytes: int) -> None:
        self._stats = stats
        self._min_free_bytes = min_free_bytes

    async def check(self) -> str | None:
        reason = None
        for stats in self._stats():
            if not stats.disk_total_bytes:  # an older engine does not send it
                return None
            reason = shortage(DiskSpace(stats.disk_free_bytes, stats.disk_total_bytes), self._min_free_bytes)
            if reason is None:
                return None
        return reason


class SchemaVersion:
    """Checks that this release serves the database's schema: at start and at every probe, since the database
    may be restored or migrated meanwhile.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._has_passed = False
        self._reason: str | None = None

    async def check_at_start(self) -> None:
        """Raises UnusableDatabase. While PostgreSQL is away the process starts: /readyz goes on asking."""
        try:
            await assert_fit_to_serve(self._database)
            self._has_passed = True
        except DatabaseUnavailable as error:
            log.warning("the schema is not checked yet", error=str(error))

    async def check(self) -> str | None:
        """Returns why not, with both versions; logged when it begins. Raises DatabaseUnavailable before it
        passed once: afterwards that is for the check of PostgreSQL to say.
        """
        before = self._reason
        try:
            await assert_fit_to_serve(self._database)
            self._has_passed, self._reason = True, None
        except DatabaseUnavailable:
            if not self._has_passed:
                raise
        except UnusableDatabase as error:
            self._reason = str(error)
            if self._reason != before:
                log.error("the database cannot be served from", reason=self._reason)
        return self._reason


class ExpectedBase:
    """Checks, while no engine serves, whether engines answer and were left out, such as for another base."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    async def check(self) -> str | None:
        if self._pools.ready:
            return None
        return "; ".join(reason for pool in self._pools for reason in pool.engine.left_out) or None
