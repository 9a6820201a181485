"""Plans meter events from the ledger's hours: numbered differences that are still to be metered."""

from __future__ import annotations

from datetime import datetime, timedelta

from billing.payments.hours.repository import HourBook
from db.session import EVERY_TENANT, Database

SETTLING = timedelta(minutes=10)
"""The time from an hour's end to its first number. Usage recorded later gets a number of its own."""
EPOCH = datetime.fromisoformat("2000-01-01T00:00:00+00:00")


class MeterPlanning:
    """Turns the ledger's hours into numbered meter events."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def plan(self, now: datetime, *, since: datetime = EPOCH) -> int:
        """Plans the cost of complete hours beyond what was planned for them; returns the number of events.
        Raises DatabaseUnavailable.

        `since` limits the hours that are compared; changes in earlier hours wait for a call without it.
        """
        async with self._database.write(EVERY_TENANT) as session:
            return await HourBook(session).plan(_hour(since), _hour(now - SETTLING), now)

    async def unplanned(self, now: datetime) -> list[tuple[str, datetime, int]]:
        """Returns tenants, hours and their difference from the plan: none right after `plan`."""
        async with self._database.read(EVERY_TENANT) as session:
            return await HourBook(session).unplanned(EPOCH, _hour(now - SETTLING))


def _hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)
