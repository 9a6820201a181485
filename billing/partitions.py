"""Keeps the ledger's monthly partitions ahead of the calendar."""

from __future__ import annotations

from datetime import UTC, datetime

from billing.repository import LedgerWriter
from db.session import EVERY_TENANT, Database

MONTHS_AHEAD = 3


async def make_partitions_ahead(database: Database, now: datetime | None = None) -> int:
    """Make the partitions of this month and the next ones; how many were missing. Raises DatabaseUnavailable,
    also when the ledger is too busy to change.
    """
    today = (now or datetime.now(UTC)).date()
    async with database.write(EVERY_TENANT) as session:
        return await LedgerWriter(session).ensure_partitions(today, MONTHS_AHEAD + 1)
