"""Checks behind /readyz that need more than a ping: Redis takes writes, disks have room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import redis.asyncio
from redis.exceptions import ResponseError

from engine.protocol import EngineStats
from telemetry.disk import DiskSpace, disk_space, shortage

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
    """The file system of the engine's usage spool has room, by the engine's latest heartbeat."""

    def __init__(self, stats: Callable[[], EngineStats | None], min_free_bytes: int) -> None:
        self._stats = stats
        self._min_free_bytes = min_free_bytes

    async def check(self) -> str | None:
        stats = self._stats()
        if stats is None or not stats.disk_total_bytes:  # an older engine does not send it
            return None
        return shortage(DiskSpace(stats.disk_free_bytes, stats.disk_total_bytes), self._min_free_bytes)
