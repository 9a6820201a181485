"""Compares the journal with the ledger: entries that wait too long, and entries that became no row.

An entry leaves the journal once its row is committed. An entry that is still there although its row has all
of it was merely not removed yet, which is no difference.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import redis.asyncio

from billing.errors import MalformedEvent
from billing.folding import decode, fold, measure
from billing.metering import DEAD_LETTERS
from billing.reconciliation.differences import Difference
from billing.reconciliation.repository import BooksRepository
from db.session import EVERY_TENANT, Database
from db.stream import Entry
from engine.protocol import JOURNAL_STREAM

DRAINED_WITHIN = timedelta(minutes=1)
_PAGE = 1000


async def compare_journal(
    database: Database, client: redis.asyncio.Redis, now: datetime, stream: str = JOURNAL_STREAM
) -> list[Difference]:
    """Returns the entries older than a minute that the ledger lacks. `client` must return bytes. Raises
    DatabaseUnavailable, RedisError.
    """
    found: list[Difference] = []
    last = f"{round((now - DRAINED_WITHIN).timestamp() * 1000)}-0"
    async for page in entries_in(client, stream, last):
        rows = []
        for entry_id, fields in page:
            try:
                rows.append(measure(decode(fields.get(b"e"))))
            except MalformedEvent as error:
                what = f"entry {entry_id.decode()}: {error}"
                found.append(Difference("journal", "", what, _moment(entry_id), 1, 0))
        async with database.read(EVERY_TENANT) as session:
            behind = await BooksRepository(session).behind(fold(rows))
        found += [
            Difference(
                "journal",
                one.tenant_id,
                f"{one.name} of {one.request_id}",
                one.submitted_at,
                one.expected,
                one.found,
            )
            for one in behind
        ]
    return found


async def dead_letters(client: redis.asyncio.Redis) -> list[Difference]:
    """Returns the entries that could not become a row. Raises RedisError."""
    found: list[Difference] = []
    async for page in entries_in(client, DEAD_LETTERS):
        for letter_id, fields in page:
            entry, reason = (_text(fields.get(name)) for name in (b"id", b"reason"))
            what = f"entry {entry}: {reason}"
            found.append(Difference("dead_letters", "", what, _moment(letter_id), 1, 0))
    return found


async def entries_in(client: redis.asyncio.Redis, stream: str, last: str = "+") -> AsyncIterator[list[Entry]]:
    """Yields the entries of a stream up to the id `last`, a page at a time. Raises RedisError."""
    after = "-"
    while True:
        answer: Any = await client.xrange(stream, after, last, count=_PAGE)
        if not answer:
            return
        yield [(entry_id, fields or {}) for entry_id, fields in answer]
        after = f"({answer[-1][0].decode()}"


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else ""


def _moment(entry_id: bytes) -> datetime:
    """Returns when Redis received the entry."""
    return datetime.fromtimestamp(int(entry_id.partition(b"-")[0]) / 1000, UTC)
