"""Summing the minutes up again: whether hours and days are what their minutes come to, and making them so."""

from __future__ import annotations

from datetime import datetime, timedelta

from db.session import EVERY_TENANT, Database
from sla.rollups.repository import RollupBooks, RollupDifference

_DAY = timedelta(days=1)


async def rederive(
    database: Database, start: datetime, end: datetime, *, fix: bool = False
) -> list[RollupDifference]:
    """Sum the minutes of [start, end), whole UTC days, up again, a day at a time, and name every hour and day
    that differs; with `fix`, make it right, with no other writer meanwhile. Raises DatabaseUnavailable.
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
