"""Stores the refused calls that API processes sent, and drops them after a month.

An entry leaves the stream once its rows are committed. A call has the same key however often it comes, so a
worker that is killed at any moment loses none and stores none twice.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import redis.asyncio
import structlog

from db.session import EVERY_TENANT, Database
from db.stream import Entry, StreamConsumer
from tenants.refusals.recorder import BATCH_SIZE, STREAM, HourCount, RefusedRequest
from tenants.refusals.repository import RefusalWriter
from tenants.retention.classes import DataClass
from tenants.retention.repository import RetentionInventory

log = structlog.get_logger(__name__)

GROUP = "refused"
KEPT_DAYS = 30
DAYS_AHEAD = 3

_CALL = msgspec.msgpack.Decoder(RefusedRequest)
_COUNTS = msgspec.msgpack.Decoder(list[HourCount])


class RefusalIntake:
    """One consumer of the stream. Consumers that run at the same time need different `consumer` names."""

    def __init__(
        self,
        database: Database,
        redis_client: redis.asyncio.Redis,
        consumer: str,
        *,
        batch_size: int = BATCH_SIZE,
        stale_after: float = 10.0,
    ) -> None:
        self._database = database
        self._stream = StreamConsumer(
            redis_client, STREAM, GROUP, consumer, batch_size=batch_size, stale_after=stale_after
        )

    async def drain(self, *, max_batches: int = 20) -> int:
        """Stores what is in the stream; returns the number of entries. Raises DatabaseUnavailable or
        RedisError: entries that were not acknowledged are stored next time.
        """
        return await self._stream.drain(self._store, max_batches)

    async def tidy(self, now: datetime | None = None) -> int:
        """Creates the partitions of the days ahead, and drops what is older than `KEPT_DAYS`; returns how
        many partitions were dropped. While an organization holds such calls, partitions stay, and what others
        have is deleted row by row (`retention`). Raises DatabaseUnavailable, RedisError.
        """
        today = (now or datetime.now(UTC)).date()
        async with self._database.write(EVERY_TENANT) as session:
            writer = RefusalWriter(session)
            await writer.ensure_partitions(today, DAYS_AHEAD + 1)
            inventory = RetentionInventory(session)
            is_held = await inventory.is_anything_held(DataClass.REQUESTS)
            dropped = 0 if is_held else await writer.forget_before(today - timedelta(days=KEPT_DAYS))
        await self._stream.forget_idle_consumers()
        return dropped

    async def _store(self, entries: list[Entry]) -> None:
        calls: list[RefusedRequest] = []
        counts: list[HourCount] = []
        for entry_id, fields in entries:
            try:
                if b"counts" in fields:
                    counts += _COUNTS.decode(fields[b"counts"])
                else:
                    calls.append(_checked(_CALL.decode(fields[b"call"])))
            except (KeyError, ValueError, msgspec.DecodeError) as error:
                log.error("malformed entry of refused requests", entry=entry_id.decode(), error=str(error))
        async with self._database.write(EVERY_TENANT) as session:
            writer = RefusalWriter(session)
            await writer.add(calls)
            await writer.count(counts)


def _checked(call: RefusedRequest) -> RefusedRequest:
    """Raises ValueError for what the table cannot take: one such call would hold up all others."""
    if "\x00" in "".join(value for value in msgspec.structs.astuple(call) if isinstance(value, str)):
        raise ValueError("a text contains a NUL character")
    if not call.tenant_id or not 0 <= call.at < 4_102_444_800_000_000:
        raise ValueError("the tenant is empty, or the time out of range")
    return call
