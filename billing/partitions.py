"""Creates the ledger's monthly partitions before the calendar needs them."""

from __future__ import annotations

from datetime import UTC, datetime

from billing.repository import LedgerWriter
from db.session import EVERY_TENANT, Database

MONTHS_AHEAD = 3


async def make_partitions_ahead(database: Database, now: datetime | None = None) -> int:
    """Creates the partitions of this month and the next ones; returns how many were missing.

    Raises DatabaseUnavailable, also when the ledger is too busy to be altered.
    """
    today = (now or datetime.now(UTC)).date()
    async with database.write(EVERY_TENANT) as session:
        return await LedgerWriter(session).ensure_partitions(today, MONTHS_AHEAD + 1)
