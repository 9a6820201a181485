"""Collects usage that is not in the ledger yet, and imports it where a backup is restored.

An event moves from an engine's disk to Redis to the ledger. A backup reads these in the same order: it sees
an event that moves meanwhile at least once, and importing it twice changes nothing. Requests in flight are
billed as after a crash of their engine: for the tokens that were counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec
import redis.asyncio

from billing.errors import MalformedEvent
from billing.folding import decode, measure
from billing.importing import import_events
from billing.reconciliation.journal import entries_in
from billing.reconciliation.repository import BooksRepository
from db.session import EVERY_TENANT, Database
from engine.client import EngineClient, EngineError
from engine.journal.inflight_rows import recover_table
from engine.journal.meter import SPOOL, TABLE
from engine.journal.records import encode_record, file_parts
from engine.journal.recovery import usage_at_crash
from engine.protocol import JOURNAL_STREAM, UsageEvent
from routing.endpoints import engines_at

_ENGINE_ANSWERS_WITHIN = 5.0
_BATCH = 2000


class PendingUsage(NamedTuple):
    """Usage that is on its way to the ledger, as encoded events."""

    events: list[bytes]
    in_flight: list[bytes]
    """Of requests that had not ended, with their counts so far."""
    notes: list[str]
    """Engines whose disks could not be read."""


async def pending_usage(
    folders: Sequence[Path], endpoints: Sequence[str], client: redis.asyncio.Redis
) -> PendingUsage:
    """Reads engines' disks, here by `folders` and elsewhere through `endpoints`, then Redis. Raises
    RedisError, OSError.
    """
    events: list[bytes] = []
    in_flight: list[bytes] = []
    for folder in folders:
        in_flight += [
            msgspec.msgpack.encode(usage_at_crash(row.event)) for row in recover_table(folder / TABLE).rows
        ]
        spool = folder / SPOOL
        events += records_in(spool.read_bytes() if spool.exists() else b"")
    notes = []
    for endpoint in await engines_at(endpoints):
        answer = await _spooled(endpoint)
        if isinstance(answer, str):
            notes.append(answer)
        else:
            events += answer
    async for page in entries_in(client, JOURNAL_STREAM):
        events += [fields[b"e"] for _, fields in page if b"e" in fields]
    return PendingUsage(events, in_flight, notes)


async def _spooled(endpoint: str) -> list[bytes] | str:
    """Returns the events on an engine's disk, or the reason why they are unknown."""
    client = EngineClient(endpoint, "backup")
    await client.start()
    try:
        return (await client.disk(_ENGINE_ANSWERS_WITHIN)).events
    except EngineError as error:
        return str(error)
    finally:
        await client.close()


def encoded(events: Iterable[bytes]) -> bytes:
    """Returns events as they are stored in a backup: records, like those of an engine's spool."""
    return b"".join(map(encode_record, events))


def records_in(data: bytes) -> Iterator[bytes]:
    """Yields the whole records in the data."""
    return (part.payload for part in file_parts(data) if part.payload is not None)


async def import_pending(database: Database, events: bytes, in_flight: bytes) -> int:
    """Merges what `encoded` returned into the ledger; returns how many requests it changed or added. Raises
    DatabaseUnavailable.
    """
    changed = 0
    waiting = _decoded(records_in(events))
    while batch := list(islice(waiting, _BATCH)):
        imported = await import_events(database, batch)
        changed += imported.num_new + imported.num_grown
    waiting = _decoded(records_in(in_flight))
    while batch := list(islice(waiting, _BATCH)):
        async with database.read(EVERY_TENANT) as session:
            rows = await BooksRepository(session).standing([measure(event) for event in batch])
        ended = {request_id for request_id, row in rows.items() if row.finish_reason is not None}
        imported = await import_events(database, (one for one in batch if one.request_id not in ended))
        changed += imported.num_new + imported.num_grown
    return changed


def _decoded(payloads: Iterable[bytes]) -> Iterator[UsageEvent]:
    """Yields the events that the ledger can have; what cannot is a dead letter at its source too."""
    for payload in payloads:
        try:
            event = decode(payload)
            measure(event)
        except MalformedEvent:
            continue
        yield event
