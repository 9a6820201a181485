"""What is still to be metered, as numbered events. Owns when an hour may be planned. Sends nothing."""

from __future__ import annotations

from datetime import datetime, timedelta

from billing.payments.hours.repository import HourBook
from db.session import EVERY_TENANT, Database

SETTLING = timedelta(minutes=10)
"""From an hour's end to its first number: what is recorded later is a number of its own."""
EPOCH = datetime.fromisoformat("2000-01-01T00:00:00+00:00")


class MeterPlanning:
    """Turns the ledger's hours into numbered events."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def plan(self, now: datetime, *, since: datetime = EPOCH) -> int:
        """Plan what hours that are over cost beyond what was planned for them; how many events. Raises
        DatabaseUnavailable.

        `since` spares looking at every hour there ever was: what changed before it waits for a call without.
        """
        async with self._database.write(EVERY_TENANT) as session:
            return await HourBook(session).plan(_hour(since), _hour(now - SETTLING), now)

    async def unplanned(self, now: datetime) -> list[tuple[str, datetime, int]]:
        """Tenants, hours and by how much they differ from what was planned: none, right after `plan`."""
        async with self._database.read(EVERY_TENANT) as session:
            return await HourBook(session).unplanned(EPOCH, _hour(now - SETTLING))


def _hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)
