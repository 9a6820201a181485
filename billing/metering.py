"""Drains the engines' usage journal, a Redis stream, into the ledger: no event is lost or counted twice.

Entries leave the stream only after the ledger's commit, and merging them again changes nothing. A meter that
is killed at any instant leaves either the entry or its row, and the consumer that claims the entry next
completes the work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import redis.asyncio
import structlog
from sqlalchemy.exc import DataError, IntegrityError

from billing.errors import MalformedEvent
from billing.event_numbers.repository import EventNumbers
from billing.folding import Measured, decode, fold, measure
from billing.repository import LedgerWriter
from db.session import EVERY_TENANT, Database
from db.stream import Entry, StreamConsumer
from engine.protocol import ISSUED_STREAM, JOURNAL_STREAM, IssuedEvents, UsageEvent

log = structlog.get_logger(__name__)

GROUP = "meter"
DEAD_LETTERS = "rootstock:usage:dead"
"""The stream of entries that could not become a row: `e` as it arrived, `id` of the entry, `reason`."""
MAX_DEAD_LETTERS = 100_000

_issued_decoder = msgspec.msgpack.Decoder(IssuedEvents)
OnEnded = Callable[[Sequence[UsageEvent]], Awaitable[None]]


@dataclass(slots=True)
class DrainResult:
    """The counts of one drain."""

    num_entries: int = 0
    num_requests: int = 0
    """Ledger rows changed, counted once per batch."""
    num_malformed: int = 0


class JournalMeter:
    """One consumer of the journal. Meters that run at once need different `consumer` names."""

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
        """`redis_client` must return bytes. Entries that another consumer claimed `stale_after` seconds ago
        count as abandoned. `on_ended` is called with events of requests that have ended, after they are in
        the ledger; it is called again for the same events if it raises RedisError.
        """
        self._on_ended = on_ended
        self._database = database
        self._redis = redis_client
        self._batch_size = batch_size
        self._journal = StreamConsumer(
            redis_client, stream, GROUP, consumer, batch_size=batch_size, stale_after=stale_after
        )

    async def drain(self, *, max_batches: int = 20) -> DrainResult:
        """Moves the journal's entries into the ledger, abandoned entries first, then new ones, until a batch
        is not full. Raises DatabaseUnavailable or RedisError; entries that were not acknowledged are drained
        next time.
        """
        drained = DrainResult()
        async with contextlib.aclosing(self._journal.batches(max_batches)) as batches:
            async for entries in batches:
                await self._settle(entries, drained)
        await self._take_issued()
        return drained

    async def backlog(self) -> int:
        """Returns the number of journal entries, claimed or not; each leaves after its row is committed."""
        return await self._journal.backlog()

    async def forget_idle_consumers(self) -> int:
        """Removes consumers without pending entries that have long been silent; returns how many."""
        return await self._journal.forget_idle_consumers()

    async def _settle(self, entries: list[Entry], drained: DrainResult) -> None:
        """Writes the ledger first, then calls `on_ended`, then adds the dead letters and acknowledges the
        entries in one Redis transaction.
        """
        good: dict[bytes, Measured] = {}
        events: dict[bytes, UsageEvent] = {}
        ended: dict[bytes, UsageEvent] = {}
        refused: dict[bytes, str] = {}
        for entry_id, fields in entries:
            try:
                event = events[entry_id] = decode(fields.get(b"e"))
                good[entry_id] = measure(event)
            except MalformedEvent as error:
                refused[entry_id] = str(error)
            else:
                if event.finish_reason is not None:
                    ended[entry_id] = event
        refused |= await self._write(good, events)
        if refused:  # a dead letter arrived, so its number is no gap
            async with self._database.write(EVERY_TENANT) as session:
                known = [events[entry_id] for entry_id in refused if entry_id in events]
                await EventNumbers(session).note(known, datetime.now(UTC))
        if self._on_ended is not None:
            await self._on_ended([event for entry_id, event in ended.items() if entry_id not in refused])
        payloads = {entry_id: fields.get(b"e", b"") for entry_id, fields in entries}
        async with self._redis.pipeline(transaction=True) as pipe:
            for entry_id, reason in refused.items():
                log.error(
                    "journal entry is malformed",
                    entry_id=entry_id.decode(),
                    kept_in=DEAD_LETTERS,
                    error=reason,
                )
                letter = {"e": payloads[entry_id], "id": entry_id, "reason": reason}
                pipe.xadd(DEAD_LETTERS, letter, maxlen=MAX_DEAD_LETTERS, approximate=True)  # type: ignore[arg-type]
            self._journal.acknowledge(pipe, entries)
            await pipe.execute()
        drained.num_entries += len(entries)
        drained.num_requests += len({row.key for entry_id, row in good.items() if entry_id not in refused})
        drained.num_malformed += len(refused)

    async def _write(self, good: dict[bytes, Measured], events: dict[bytes, UsageEvent]) -> dict[bytes, str]:
        """Commits rows and the numbers of their events. If PostgreSQL rejects the values, halves the batch
        until the faulty entry is alone. Returns the rejected entries with their reasons.
        """
        if not good:
            return {}
        try:
            async with self._database.write(EVERY_TENANT) as session:
                await LedgerWriter(session).upsert(fold(good.values()))
                await EventNumbers(session).note([events[entry_id] for entry_id in good], datetime.now(UTC))
        except (DataError, IntegrityError) as error:
            if len(good) == 1:
                return dict.fromkeys(good, f"refused by the ledger: {error.orig}")
            items = list(good.items())
            half = len(items) // 2
            first = await self._write(dict(items[:half]), events)
            return first | await self._write(dict(items[half:]), events)
        return {}

    async def _take_issued(self) -> None:
        """Records how many events each ended engine incarnation says it issued."""
        entries: Any = await self._redis.xrange(ISSUED_STREAM, count=self._batch_size)
        if not entries:
            return
        issued = []
        for entry_id, fields in entries:
            try:
                issued.append(_issued_decoder.decode(fields.get(b"e", b"")))
            except msgspec.DecodeError as error:
                log.error(
                    "entry of issued event numbers is malformed",
                    entry_id=entry_id.decode(),
                    stream=ISSUED_STREAM,
                    error=str(error),
                )
        async with self._database.write(EVERY_TENANT) as session:
            await EventNumbers(session).end(issued)
        await self._redis.xdel(ISSUED_STREAM, *(entry_id for entry_id, _ in entries))
