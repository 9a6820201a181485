"""The meter: drains the engines' usage journal, a Redis stream, into the ledger. Nothing lost, nothing
counted twice.

Entries leave the stream only after the ledger's commit, and merging them again changes nothing: a meter
killed at any instant leaves either the entry or its row, and whoever claims the entry next completes the
work. Knows no prices.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import redis.asyncio
from redis.exceptions import ResponseError
from sqlalchemy.exc import DataError, IntegrityError

from billing.errors import MalformedEvent
from billing.folding import Measured, decode, fold, measure
from billing.repository import LedgerWriter
from db.session import EVERY_TENANT, Database
from engine.protocol import JOURNAL_STREAM, UsageEvent

logger = logging.getLogger(__name__)

GROUP = "meter"
DEAD_LETTERS = "rootstock:usage:dead"
"""Stream of entries that no row could be made of: field e as it came, `id` of the entry, `reason`."""
MAX_DEAD_LETTERS = 100_000
FORGET_CONSUMER_AFTER = 3600.0
"""Seconds without a sign of life after which a consumer that owes nothing is removed from the group."""

OnEnded = Callable[[Sequence[UsageEvent]], Awaitable[None]]
Entry = tuple[bytes, dict[bytes, bytes] | None]


@dataclass(slots=True)
class Drained:
    """What one drain did."""

    num_entries: int = 0
    num_requests: int = 0
    """Ledger rows touched, counted once per batch."""
    num_malformed: int = 0


class JournalMeter:
    """One consumer of the journal. `consumer` must differ between meters that run at once."""

    def __init__(
        self,
        database: Database,
        redis_client: redis.asyncio.Redis,
        consumer: str,
        *,
        batch_size: int = 1000,
        stale_after: float = 10.0,
        stream: str = JOURNAL_STREAM,
        on_ended: OnEnded | None = None,
    ) -> None:
        """`redis_client` answers bytes. Entries another consumer took `stale_after` seconds ago count as
        abandoned. `on_ended` hears of requests that have ended, once they are in the ledger; again, if it
        raises RedisError.
        """
        self._on_ended = on_ended
        self._database = database
        self._redis = redis_client
        self._consumer = consumer
        self._batch_size = batch_size
        self._stale_ms = round(stale_after * 1000)
        self._stream = stream

    async def drain(self, *, max_batches: int = 20) -> Drained:
        """Move what is in the journal into the ledger: abandoned entries first, then new ones, until a batch
        comes back short. Raises DatabaseUnavailable or RedisError; what was not acknowledged is drained next
        time.
        """
        drained = Drained()
        await self._ensure_group()
        for take in (self._take_abandoned, self._take_new):
            for _ in range(max_batches):
                entries = await take()
                if not entries:
                    break
                await self._settle(entries, drained)
                if len(entries) < self._batch_size:
                    break
        return drained

    async def backlog(self) -> int:
        """Entries in the journal, taken or not: each leaves once its row is committed."""
        return await self._redis.xlen(self._stream)

    async def forget_idle_consumers(self) -> int:
        """Remove consumers that owe nothing and have long been silent; every worker that ever ran was one."""
        removed = 0
        await self._ensure_group()
        for consumer in await self._redis.xinfo_consumers(self._stream, GROUP):
            if not consumer["pending"] and consumer["idle"] > FORGET_CONSUMER_AFTER * 1000:
                await self._redis.xgroup_delconsumer(self._stream, GROUP, consumer["name"])
                removed += 1
        return removed

    async def _ensure_group(self) -> None:
        """From the first entry on: what engines wrote before the first meter ran counts too."""
        try:
            await self._redis.xgroup_create(self._stream, GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    async def _take_abandoned(self) -> list[Entry]:
        """Entries taken by a consumer that died, or by this one before an error."""
        claimed = await self._redis.xautoclaim(
            self._stream,
            GROUP,
            self._consumer,
            min_idle_time=self._stale_ms,
            start_id="0-0",
            count=self._batch_size,
        )
        # Redis before 7 answers (None, None) for an entry that was deleted from the stream while it was
        # pending.
        return [(entry_id, fields) for entry_id, fields in claimed[1] if entry_id is not None]

    async def _take_new(self) -> list[Entry]:
        answer: Any = await self._redis.xreadgroup(
            GROUP, self._consumer, {self._stream: ">"}, count=self._batch_size
        )
        return answer[0][1] if answer else []

    async def _settle(self, entries: Sequence[Entry], drained: Drained) -> None:
        """Ledger first, then who hears of ends, then the dead letters and the acknowledgement: these in one
        Redis transaction.
        """
        good: dict[bytes, Measured] = {}
        ended: dict[bytes, UsageEvent] = {}
        refused: dict[bytes, str] = {}
        for entry_id, fields in entries:
            try:
                event = decode((fields or {}).get(b"e"))
                good[entry_id] = measure(event)
            except MalformedEvent as error:
                refused[entry_id] = str(error)
            else:
                if event.finish_reason is not None:
                    ended[entry_id] = event
        refused |= await self._write(good)
        if self._on_ended is not None:
            await self._on_ended([event for entry_id, event in ended.items() if entry_id not in refused])
        payloads = {entry_id: (fields or {}).get(b"e", b"") for entry_id, fields in entries}
        async with self._redis.pipeline(transaction=True) as pipe:
            for entry_id, reason in refused.items():
                logger.error(
                    "journal entry %s is malformed, kept in %s: %s", entry_id.decode(), DEAD_LETTERS, reason
                )
                letter = {"e": payloads[entry_id], "id": entry_id, "reason": reason}
                pipe.xadd(DEAD_LETTERS, letter, maxlen=MAX_DEAD_LETTERS, approximate=True)  # type: ignore[arg-type]
            pipe.xack(self._stream, GROUP, *payloads)
            pipe.xdel(self._stream, *payloads)
            await pipe.execute()
        drained.num_entries += len(entries)
        drained.num_requests += len({row.key for entry_id, row in good.items() if entry_id not in refused})
        drained.num_malformed += len(refused)

    async def _write(self, good: dict[bytes, Measured]) -> dict[bytes, str]:
        """Commit rows. If PostgreSQL refuses the values, halve until the entry at fault is alone; those are
        returned.
        """
        if not good:
            return {}
        try:
            async with self._database.write(EVERY_TENANT) as session:
                await LedgerWriter(session).upsert(fold(good.values()))
        except (DataError, IntegrityError) as error:
            if len(good) == 1:
                return dict.fromkeys(good, f"refused by the ledger: {error.orig}")
            items = list(good.items())
            half = len(items) // 2
            return await self._write(dict(items[:half])) | await self._write(dict(items[half:]))
        return {}
