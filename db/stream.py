"""Sends rows through a Redis stream: a producer adds entries, a consumer group stores them.

An entry leaves the stream once its rows are committed. An entry that a consumer read but did not acknowledge
is delivered again, after a while to another consumer: code that writes rows from entries must tolerate
duplicates.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError, ResponseError

FORGET_CONSUMER_AFTER = 3600.0
"""Seconds of idleness after which a consumer without pending entries is removed from the group."""

Entry = tuple[bytes, dict[bytes, bytes]]
"""An entry's id and fields."""


class StreamProducer:
    """Adds entries to a stream, unless `max_entries` wait in it: then no worker takes them. What is not added
    is the caller's to hold: `MAXLEN` would cut off entries without a count of them.
    """

    def __init__(self, redis_client: redis.asyncio.Redis, stream: str, max_entries: int) -> None:
        self._redis = redis_client
        self._stream = stream
        self._max_entries = max_entries
        self._num_entries = 0
        """In the stream after the last addition."""

    async def add(self, entries: Iterable[dict[str, bytes]]) -> str | None:
        """Adds entries in one round trip; returns the reason if they may be missing. Adding them again after
        that may add some twice.
        """
        try:
            if self._num_entries >= self._max_entries:
                self._num_entries = await self._redis.xlen(self._stream)
                if self._num_entries >= self._max_entries:
                    return f"{self._max_entries} entries wait in {self._stream}, no worker takes them"
            async with self._redis.pipeline(transaction=False) as pipe:
                for entry in entries:
                    fields: dict[Any, Any] = {**entry}
                    pipe.xadd(self._stream, fields)
                pipe.xlen(self._stream)
                replies: list[Any] = await pipe.execute()
        except (RedisError, OSError) as error:
            return type(error).__name__
        self._num_entries = replies[-1]
        return None


class StreamConsumer:
    """One consumer of a stream. `name` must be unique among consumers that run at the same time."""

    def __init__(
        self,
        redis_client: redis.asyncio.Redis,
        stream: str,
        group: str,
        name: str,
        *,
        batch_size: int = 1000,
        stale_after: float = 10.0,
    ) -> None:
        """`redis_client` must return bytes. Entries that another consumer read more than `stale_after`
        seconds ago count as abandoned.
        """
        self._redis = redis_client
        self._stream, self._group, self._name = stream, group, name
        self._batch_size = batch_size
        self._stale_ms = round(stale_after * 1000)

    async def batches(self, most: int) -> AsyncGenerator[list[Entry], None]:
        """Yields abandoned entries, then new ones: each until a batch is short or `most` batches came."""
        await self._ensure_group()
        for take in (self._take_abandoned, self._take_new):
            for _ in range(most):
                entries = await take()
                if entries:
                    yield entries
                if len(entries) < self._batch_size:
                    break

    async def drain(self, store: Callable[[list[Entry]], Awaitable[None]], max_batches: int) -> int:
        """Has every batch stored, then acknowledges it; returns the number of entries.

        Raises what `store` raises: its batch is delivered again.
        """
        num_entries = 0
        async with contextlib.aclosing(self.batches(max_batches)) as batches:
            async for entries in batches:
                await store(entries)
                async with self._redis.pipeline(transaction=True) as pipe:
                    self.acknowledge(pipe, entries)
                    await pipe.execute()
                num_entries += len(entries)
        return num_entries

    def acknowledge(self, pipe: Any, entries: list[Entry]) -> None:
        """Queues the acknowledgement and deletion of `entries` on a Redis pipeline."""
        ids = [entry_id for entry_id, _ in entries]
        pipe.xack(self._stream, self._group, *ids)
        pipe.xdel(self._stream, *ids)

    async def backlog(self) -> int:
        """Returns the number of entries in the stream, read or not."""
        return await self._redis.xlen(self._stream)

    async def forget_idle_consumers(self) -> int:
        """Removes idle consumers without pending entries (every worker that ever ran left one); returns how
        many.
        """
        removed = 0
        await self._ensure_group()
        for consumer in await self._redis.xinfo_consumers(self._stream, self._group):
            if not consumer["pending"] and consumer["idle"] > FORGET_CONSUMER_AFTER * 1000:
                await self._redis.xgroup_delconsumer(self._stream, self._group, consumer["name"])
                removed += 1
        return removed

    async def _ensure_group(self) -> None:
        """Creates the group from the first entry on: entries older than the first consumer count too."""
        try:
            await self._redis.xgroup_create(self._stream, self._group, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    async def _take_abandoned(self) -> list[Entry]:
        """Returns entries that were read by a consumer that died, or by this one before an error."""
        claimed = await self._redis.xautoclaim(
            self._stream,
            self._group,
            self._name,
            min_idle_time=self._stale_ms,
            start_id="0-0",
            count=self._batch_size,
        )
        # Redis before 7 returns (None, None) for an entry that was deleted from the stream while pending.
        return [(entry_id, fields or {}) for entry_id, fields in claimed[1] if entry_id is not None]

    async def _take_new(self) -> list[Entry]:
        answer: Any = await self._redis.xreadgroup(
            self._group, self._name, {self._stream: ">"}, count=self._batch_size
        )
        return [(entry_id, fields or {}) for entry_id, fields in answer[0][1]] if answer else []
