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


class NotReady(Exception):
    """A check failed. Anybody who reaches the port reads the message: no addresses, paths or credentials."""


class RedisWritable:
    """Redis takes a write. A replica, a full Redis and one with a full disk answer a PING, too."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client

    async def check(self) -> None:
        try:
            await self._client.set(_PROBE_KEY, b"1", ex=_PROBE_TTL)
        except ResponseError as error:
            raise NotReady(f"refuses writes: {error}") from error


class LocalDisk:
    """The file system that this process keeps tenants' files on has room."""

    def __init__(self, directory: Path, min_free_bytes: int) -> None:
        self._directory = directory
        self._min_free_bytes = min_free_bytes

    async def check(self) -> None:
        space = await asyncio.to_thread(disk_space, self._directory)
        _require(space, self._min_free_bytes)


class EngineDisk:
    """The file system of the engine's usage spool has room, by the engine's latest heartbeat."""

    def __init__(self, stats: Callable[[], EngineStats | None], min_free_bytes: int) -> None:
        self._stats = stats
        self._min_free_bytes = min_free_bytes

    async def check(self) -> None:
        stats = self._stats()
        if stats is not None and stats.disk_total_bytes:  # an older engine does not send it
            _require(DiskSpace(stats.disk_free_bytes, stats.disk_total_bytes), self._min_free_bytes)


def _require(space: DiskSpace, min_free_bytes: int) -> None:
    found = shortage(space, min_free_bytes)
    if found is not None:
        raise NotReady(found)
