"""Charges tenants for storage by the day and for successful calibration jobs.

Each is charged once: a charge's id says what it is for, so charging again changes nothing. Database triggers
record the stored bytes and the finished jobs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, date, datetime, timedelta

from billing.charges.due_charges import DueCharge, calibration_charge, storage_charges
from billing.charges.repository import ChargeBook
from billing.repository import PriceList
from db.session import EVERY_TENANT, Database, WriteSession

SETTLED_AFTER = timedelta(minutes=10)
"""How long after a day's end transactions that began in it may still record stored bytes."""
_DAY = timedelta(days=1)

OnCharged = Callable[[Sequence[DueCharge]], Awaitable[None]]


class ChargeService:
    """Makes due charges of all tenants, and calls `on_charged` with new ones after the commit."""

    def __init__(self, database: Database, on_charged: OnCharged | None = None) -> None:
        self._database = database
        self._on_charged = on_charged

    async def charge_storage(self, now: datetime) -> int:
        """Charges every whole UTC day before `now` that is not charged yet, at the price in effect when the
        day began. Returns the number of new charges. Raises DatabaseUnavailable.
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
            charges: list[DueCharge] = []
            if price is not None and price.adapter_gb_day:
                charges = storage_charges(await book.stored(start, start + _DAY), start, price)
            made = await book.add(charges)
            self._notify(session, made)
        return len(made)

    async def charge_calibrations(self) -> int:
        """Charges successful jobs, each at the price in effect when it ended. Returns the number of new
        charges. Raises DatabaseUnavailable.
        """
        async with self._database.write(EVERY_TENANT) as session:
            book, prices = ChargeBook(session), PriceList(session)
            charges = []
            for job in await book.take_calibrations():
                price = await prices.in_effect(job.finished_at)
                if price is not None and price.calibration_job:
                    charges.append(calibration_charge(job, price))
            made = await book.add(charges)
            self._notify(session, made)
        return len(made)

    def _notify(self, session: WriteSession, made: Sequence[DueCharge]) -> None:
        on_charged = self._on_charged
        if on_charged is not None and made:
            session.after_commit(lambda: on_charged(made))


def _begin(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
