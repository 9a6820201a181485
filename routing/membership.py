"""Follows a registry of engines in Redis, so that a set of replicas learns of engines that come and go.

While Redis is away the last known engines stay. So does an engine that is connected, registered or not: an
empty Redis that has just restarted says nothing about the engines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import redis.asyncio
import structlog
from redis.exceptions import RedisError

from engine.registry import RegistryAddress, read_registry
from telemetry.tasks import cancel

log = structlog.get_logger(__name__)

INTERVAL = 1.0
"""Seconds between two looks."""
_TIMEOUT = 2.0


class Membership:
    """Hands the registered engines' endpoints to `apply` every second, from `start` to `close`."""

    def __init__(
        self,
        registry: RegistryAddress,
        apply: Callable[[frozenset[str]], Awaitable[None]],
        interval: float = INTERVAL,
    ) -> None:
        self._registry = registry
        self._apply = apply
        self._interval = interval
        self._is_away = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Looks once, then keeps looking."""
        self._redis = redis.asyncio.Redis.from_url(
            self._registry.redis_url, socket_timeout=_TIMEOUT, socket_connect_timeout=_TIMEOUT
        )
        await self._look()
        self._task = asyncio.create_task(self._keep_looking(), name="engines' membership")

    async def close(self) -> None:
        if self._task is None:
            return
        await cancel(self._task)
        self._task = None
        await self._redis.aclose()

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            await self._look()

    async def _look(self) -> None:
        try:
            registered = await read_registry(self._redis)
            self._is_away = False
        except RedisError as error:
            if not self._is_away:
                log.error("the registry cannot be read; the known engines stay", reason=str(error))
            self._is_away = True
            return
        await self._apply(frozenset(self._registry.endpoints_of(registered)))
