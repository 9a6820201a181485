"""Makes charges as they fall due.

Owns that each is charged once: a charge's id says what for, so charging again changes nothing. Refuses to
know adapters and jobs: what is stored and which jobs ended well the database notes by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, date, datetime, timedelta

from billing.charges.dues import Due, calibration_due, storage_dues
from billing.charges.repository import ChargeBook
from billing.repository import PriceList
from db.session import EVERY_TENANT, Database, WriteSession

SETTLED_AFTER = timedelta(minutes=10)
"""How long after a day's end transactions that began in it may still be noting what is stored."""
_DAY = timedelta(days=1)

OnCharged = Callable[[Sequence[Due]], Awaitable[None]]


class ChargeService:
    """Makes charges as they fall due, for all tenants. `on_charged` hears of new ones after they are made."""

    def __init__(self, database: Database, on_charged: OnCharged | None = None) -> None:
        self._database = database
        self._on_charged = on_charged

    async def charge_storage(self, now: datetime) -> int:
        """Charge every whole UTC day before `now` that is not charged yet, by the price in effect as it
        began; how many charges that made. Raises DatabaseUnavailable.
        """
        async with self._database.read(EVERY_TENANT) as session:
            day = await ChargeBook(session).first_uncharged_day()
        made = 0
        while day is not None and _begin(day) + _DAY + SETTLED_AFTER <= now:
            made += await self._charge_day(day, now)
            day += _DAY
        return made

    async def _charge_day(self, day: date, now: datetime) -> int:
        start = _begin(day)
        async with self._database.write(EVERY_TENANT) as session:
            book = ChargeBook(session)
            if not await book.take_day(day, now):
                return 0
            price = await PriceList(session).in_effect(start)
            dues: list[Due] = []
            if price is not None and price.adapter_gb_day:
                dues = storage_dues(await book.stored(start, start + _DAY), start, price)
            made = await book.add(dues)
            self._tell(session, made)
        return len(made)

    async def charge_calibrations(self) -> int:
        """Charge jobs that ended well, each by the price in effect then; how many charges that made. Raises
        DatabaseUnavailable.
        """
        async with self._database.write(EVERY_TENANT) as session:
            book, prices = ChargeBook(session), PriceList(session)
            dues = []
            for job in await book.take_calibrations():
                price = await prices.in_effect(job.finished_at)
                if price is not None and price.calibration_job:
                    dues.append(calibration_due(job, price))
            made = await book.add(dues)
            self._tell(session, made)
        return len(made)

    def _tell(self, session: WriteSession, made: Sequence[Due]) -> None:
        on_charged = self._on_charged
        if on_charged is not None and made:
            session.after_commit(lambda: on_charged(made))


def _begin(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
