"""Compares the hours and days of service levels with their minutes, and corrects them on request."""

from __future__ import annotations

from datetime import datetime, timedelta

from db.session import EVERY_TENANT, Database
from sla.rollups.repository import RollupBooks, RollupDifference

_DAY = timedelta(days=1)


async def rederive(
    database: Database, start: datetime, end: datetime, *, fix: bool = False
) -> list[RollupDifference]:
    """Sums the minutes of [start, end), whole UTC days, again, a day at a time, and returns every hour and
    day that differs. With `fix`, corrects them while holding off other writers. Raises DatabaseUnavailable.
    """
    found = []
    while start < end:
        following = start + _DAY
        session_of = database.write if fix else database.read
        async with session_of(EVERY_TENANT) as session:
            books = RollupBooks(session)
            if fix:
                await books.hold()
            differences = await books.differences(start, following)
            if fix and differences:
                await books.derive(start, following)
        found += differences
        start = following
    return found
