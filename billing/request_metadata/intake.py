"""Stores the metadata of requests that API processes sent.

An entry leaves the stream once its row is committed. A request has one row however often its entry comes, so
a worker that is killed at any moment loses none and stores none twice.
"""

from __future__ import annotations

import msgspec
import redis.asyncio
import structlog

from billing.request_ids import submitted_at_of
from billing.request_metadata.recorder import BATCH_SIZE, STREAM, MetadataEntry
from billing.request_metadata.repository import MetadataWriter
from db.session import EVERY_TENANT, Database
from db.stream import Entry, StreamConsumer

log = structlog.get_logger(__name__)

GROUP = "request-metadata"

_ENTRY = msgspec.msgpack.Decoder(MetadataEntry)


class MetadataIntake:
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

    async def tidy(self) -> None:
        """Forgets consumers that are gone. Raises RedisError."""
        await self._stream.forget_idle_consumers()

    async def _store(self, entries: list[Entry]) -> None:
        rows = []
        for entry_id, fields in entries:
            try:
                rows.append(_row(_ENTRY.decode(fields[b"row"])))
            except (KeyError, ValueError, msgspec.DecodeError) as error:
                log.error("malformed metadata of a request", entry=entry_id.decode(), error=str(error))
        async with self._database.write(EVERY_TENANT) as session:
            await MetadataWriter(session).add(rows)


def _row(entry: MetadataEntry) -> dict[str, object]:
    """Raises ValueError for what the table cannot take: one such entry would hold up all others."""
    submitted_at = submitted_at_of(entry.request_id)
    if submitted_at is None or not entry.tenant_id or "\x00" in entry.tenant_id:
        raise ValueError("the tenant is empty, or the id is not one of a request")
    return {
        "tenant_id": entry.tenant_id,
        "submitted_at": submitted_at,
        "request_id": entry.request_id,
        "sealed": entry.sealed,
    }
