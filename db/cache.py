"""Caches rows read-through and invalidates them over Redis, so that requests are authorised without a query.

Entries serve for `ttl` seconds while the invalidation channel is alive, one second while it is not. A message
drops a group of entries within milliseconds of the commit. While PostgreSQL is away, entries that were not
invalidated keep serving. Rows come from a loader that the owner of the cache passes in.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import redis.asyncio
import structlog
from redis.exceptions import RedisError

from db.errors import DatabaseUnavailable
from telemetry.tasks import cancel

log = structlog.get_logger(__name__)

V = TypeVar("V")
EVERYTHING = "*"
"""The group that stands for all groups."""

DISCONNECTED_TTL = 1.0
"""Seconds an entry serves while invalidations may be lost."""
PING_INTERVAL = 0.5
"""Seconds of silence after which the channel is pinged."""
DISCONNECTED_AFTER = 1.5
"""Seconds without a message or pong after which the channel counts as lost."""
RETRY_AFTER = 1.0
"""Seconds that a stale entry serves before PostgreSQL, last found unavailable, is tried again."""
RENEW_FROM = 0.5, 0.75
"""Renewal point as a share of `Lifetimes.found`, drawn between these for each entry: an entry used after it
is reloaded in the background, so that steadily used entries never make a caller wait, and entries that were
loaded at the same time do not expire at the same time for ever.
"""
RENEW_TOGETHER = 0.5
"""Seconds over which renewals are collected: loads that start together can share a query."""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long cached values serve, in seconds."""

    found: float = 30.0
    """A row that exists, without an invalidation."""
    missing: float = 5.0
    """The fact that there is no such row."""
    stale: float = 600.0
    """A row while PostgreSQL is unavailable, counted from its load."""


@dataclass(slots=True)
class _Entry(Generic[V]):
    value: V
    loaded_at: float
    expires_at: float
    renew_at: float
    """Time from which a hit triggers a reload in the background."""


class RowCache(Generic[V]):
    """Values by (group, key), loaded at first use; `None` from the loader means that there is no such row and
    is cached for a shorter time.

    One load per key runs at a time, however many callers wait for it. Size is bounded: least recently used
    entries are evicted first, and missing rows (guessed keys, attacks) never evict existing ones. Call
    `start` to listen for invalidations and `close` at the end.
    """

    def __init__(
        self,
        redis_client: redis.asyncio.Redis,
        channel: str,
        load: Callable[[str, str], Awaitable[V | None]],
        *,
        lifetimes: Lifetimes = Lifetimes(),
        max_entries: int = 50_000,
        max_missing: int = 2_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = redis_client
        self._channel = channel
        self._load = load
        self._lifetimes = lifetimes
        self._max_entries, self._max_missing = max_entries, max_missing
        self._clock = clock
        self._present: OrderedDict[tuple[str, str], _Entry[V]] = OrderedDict()
        self._missing: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._loading: dict[tuple[str, str], asyncio.Task[V | None]] = {}
        self._to_renew: set[tuple[str, str]] = set()
        self._renewal: asyncio.TimerHandle | None = None
        self._epoch = 0
        self._last_seen_at = float("-inf")
        self._listener: asyncio.Task[None] | None = None

    @property
    def listening(self) -> bool:
        """True while the invalidation channel is alive."""
        return self._clock() - self._last_seen_at < DISCONNECTED_AFTER

    async def start(self) -> None:
        """Starts to listen. Does not wait for Redis: until it answers, entries live one second."""
        if self._listener is None:
            self._listener = asyncio.create_task(self._listen(), name=f"invalidation of {self._channel}")

    async def close(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
        listener, self._listener = self._listener, None
        await cancel(listener, *self._loading.values())

    async def get(self, group: str, key: str) -> V | None:
        """Returns the value, or None when there is no such row. Raises DatabaseUnavailable when the row is
        not cached and cannot be loaded.
        """
        value = self.peek(group, key)
        if value is not None:
            return value
        place = (group, key)
        now = self._clock()
        missing_since = self._missing.get(place)
        if missing_since is not None and now - missing_since < (
            self._lifetimes.missing if self.listening else DISCONNECTED_TTL
        ):
            return None
        try:
            return await self._load_once(place)
        except DatabaseUnavailable:
            stale = self._present.get(place)  # looked up again: it may have been invalidated since
            if stale is None or not self.listening or now - stale.loaded_at > self._lifetimes.stale:
                raise
            stale.expires_at = stale.renew_at = self._clock() + RETRY_AFTER
            return stale.value

    def peek(self, group: str, key: str) -> V | None:
        """Returns the value if `get` would not wait for it. None does not mean that there is no such row."""
        place = (group, key)
        now = self._clock()
        entry = self._present.get(place)
        if (
            entry is None
            or now >= entry.expires_at
            or not (self.listening or now - entry.loaded_at < DISCONNECTED_TTL)
        ):
            return None
        self._present.move_to_end(place)
        if now >= entry.renew_at:
            entry.renew_at = now + RETRY_AFTER
            self._renew_soon(place)
        return entry.value

    async def invalidate(self, group: str) -> None:
        """Makes every process, this one included, forget `group`. Call it after the commit: before, other
        processes would load the old row again.
        """
        self.forget(group)
        await self._redis.publish(self._channel, group)

    def forget(self, group: str) -> None:
        """Drops `group` in this process, and entries with a key of that name. Results of running loads are
        not kept: they may have read the old row.
        """
        self._epoch += 1
        if group == EVERYTHING:
            self._present.clear()
            self._missing.clear()
            self._loading.clear()
            return
        for places in (self._present, self._missing, self._loading):
            for place in [place for place in places if group in place]:
                del places[place]  # type: ignore[attr-defined]

    async def _load_once(self, place: tuple[str, str]) -> V | None:
        task = self._loading.get(place) or self._begin_to_load(place)
        return await asyncio.shield(task)  # a caller that is cancelled does not fail the others

    def _renew_soon(self, place: tuple[str, str]) -> None:
        self._to_renew.add(place)
        if self._renewal is None:
            self._renewal = asyncio.get_running_loop().call_later(RENEW_TOGETHER, self._renew)

    def _renew(self) -> None:
        self._renewal = None
        places, self._to_renew = self._to_renew, set()
        for place in places:
            if place in self._present and place not in self._loading:
                self._begin_to_load(place)

    def _begin_to_load(self, place: tuple[str, str]) -> asyncio.Task[V | None]:
        task = asyncio.create_task(self._load_and_keep(place))
        self._loading[place] = task
        task.add_done_callback(lambda done: self._loaded(place, done))
        return task

    def _loaded(self, place: tuple[str, str], task: asyncio.Task[V | None]) -> None:
        if self._loading.get(place) is task:
            del self._loading[place]
        if not task.cancelled():
            task.exception()  # marked as retrieved, in case every caller was cancelled

    async def _load_and_keep(self, place: tuple[str, str]) -> V | None:
        epoch = self._epoch
        value = await self._load(*place)
        if epoch != self._epoch:
            return value
        now = self._clock()
        if value is None:
            self._present.pop(place, None)
            self._missing[place] = now
            self._missing.move_to_end(place)
            if len(self._missing) > self._max_missing:
                self._missing.popitem(last=False)
        else:
            self._missing.pop(place, None)
            before = self._present.get(place)
            if before is not None and before.value == value:
                value = before.value  # keeps what callers derived from the same object
            ttl = self._lifetimes.found
            renew_at = now + random.uniform(*RENEW_FROM) * ttl
            self._present[place] = _Entry(value, now, now + ttl, renew_at)
            self._present.move_to_end(place)
            if len(self._present) > self._max_entries:
                self._present.popitem(last=False)
        return value

    async def _listen(self) -> None:
        delay = 0.05
        while True:
            try:
                await self._listen_once()
            except (RedisError, OSError) as error:
                if self.listening:
                    log.warning("invalidations are lost", channel=self._channel, error=type(error).__name__)
                self._last_seen_at = float("-inf")
                await asyncio.sleep(delay)
                delay = min(delay * 2, 1.0)
            else:
                delay = 0.05

    async def _listen_once(self) -> None:
        """Listens for invalidations until the channel is lost; then returns or raises RedisError."""
        async with self._redis.pubsub() as channel:
            await channel.subscribe(self._channel)
            last_sign = self._clock()
            while True:
                message = await channel.get_message(timeout=PING_INTERVAL)
                if message is not None:
                    last_sign = self._clock()
                    self._handle(message)
                elif self._clock() - last_sign > DISCONNECTED_AFTER:
                    self._last_seen_at = float("-inf")
                    return
                else:
                    await channel.ping()

    def _handle(self, message: dict[str, Any]) -> None:
        if message["type"] == "subscribe":
            # Also sent after a reconnection inside the client: messages may have been missed.
            self.forget(EVERYTHING)
        elif message["type"] == "message":
            data = message["data"]
            self.forget(data.decode() if isinstance(data, bytes) else data)
        self._last_seen_at = self._clock()
