"""Imports usage events from a file that an engine set aside into the ledger, any number of times.

Merging keeps the largest counts of each request, so importing a file again, or events that also arrived over
the journal, changes nothing. `engine.journal.salvage` reads the files.
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
    """What an import read, and what it changed."""

    num_events: int
    num_requests: int
    num_new: int
    """Requests that were not in the ledger."""
    num_grown: int
    """Requests that were in the ledger with smaller counts."""
    completion_tokens: int
    """Completion tokens that the import added to the ledger."""
    refused: tuple[str, ...]
    """The reason for each event that could not become a row."""


async def import_events(database: Database, events: Iterable[UsageEvent]) -> Imported:
    """Merges events into the ledger in one transaction. Raises DatabaseUnavailable."""
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
        await hold_ledger(session)  # so that the differences counted are this import's own
        behind = await BooksRepository(session).behind(rows)
        if rows:
            await LedgerWriter(session).upsert(rows)
            await EventNumbers(session).note(good, datetime.now(UTC))
    new = {one.request_id for one in behind if one.name == "requests"}
    grown = {one.request_id for one in behind} - new
    tokens = sum(one.expected - one.found for one in behind if one.name == "completion tokens")
    return Imported(len(good), len(rows), len(new), len(grown), tokens, tuple(refused))
