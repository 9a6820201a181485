"""Usage events from a file that an engine set aside, into the ledger: what is readable, any number of times.

Merging keeps the largest counts of each request, so importing again, or what came in another way, changes
nothing. Knows no files: `engine.journal.salvage` reads them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from billing.errors import MalformedEvent
from billing.event_numbers.repository import EventNumbers
from billing.folding import Measured, fold, measure
from billing.reconciliation.repository import BooksRepository
from billing.repository import LedgerWriter
from billing.rollups import hold_ledger
from db.session import EVERY_TENANT, Database
from engine.protocol import UsageEvent


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import found, and changed."""

    num_events: int
    num_requests: int
    num_new: int
    """Requests that the ledger did not have."""
    num_grown: int
    """Requests that it had with smaller counts."""
    completion_tokens: int
    """That it has more now."""
    refused: tuple[str, ...]
    """Why events made no row, one by one."""


async def import_events(database: Database, events: Iterable[UsageEvent]) -> Imported:
    """Merge events into the ledger, in one transaction. Raises DatabaseUnavailable."""
    measured: list[Measured] = []
    good: list[UsageEvent] = []
    refused: list[str] = []
    for event in events:
        try:
            measured.append(measure(event))
            good.append(event)
        except MalformedEvent as error:
            refused.append(str(error))
    rows = fold(measured)
    async with database.write(EVERY_TENANT) as session:
        await hold_ledger(session)  # so that what is counted is what this import changes
        behind = await BooksRepository(session).behind(rows)
        if rows:
            await LedgerWriter(session).upsert(rows)
            await EventNumbers(session).note(good, datetime.now(UTC))
    new = {one.request_id for one in behind if one.name == "requests"}
    grown = {one.request_id for one in behind} - new
    tokens = sum(one.expected - one.found for one in behind if one.name == "completion tokens")
    return Imported(len(good), len(rows), len(new), len(grown), tokens, tuple(refused))
