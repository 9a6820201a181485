"""Compares a month's rollups with the ledger's rows they are sums of, and corrects them on request."""

from __future__ import annotations

from datetime import date, datetime, timedelta

from billing.months import span
from billing.rollups.repository import RollupBooks, RollupDifference, hold_ledger
from db.session import EVERY_TENANT, Database


async def rederive(
    database: Database, month: date, *, fix: bool = False, until: datetime | None = None
) -> list[RollupDifference]:
    """Sums a UTC month's rows again, a day at a time, and returns every rollup row that differs. With `fix`,
    corrects them while holding off other writers. Raises DatabaseUnavailable.

    Days that begin at `until` or later have no rows yet.
    """
    day, end = span(month)
    end = min(end, until or end)
    found: list[RollupDifference] = []
    while day < end:
        following = day + timedelta(days=1)
        session_of = database.write if fix else database.read
        async with session_of(EVERY_TENANT) as session:
            if fix:
                await hold_ledger(session)
            books = RollupBooks(session)
            differences = await books.differences(day, following)
            if fix:
                await books.correct(differences)
        found += differences
        day = following
    return found
