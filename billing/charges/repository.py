"""Queries charges, and the stored bytes and finished jobs that they are made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    and_,
    bindparam,
    cast,
    delete,
    func,
    or_,
    select,
    union_all,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from billing.charges.due_charges import DueCharge
from billing.models import CalibrationDue, Charge, ChargedDay, Reversal, StoredAdapter
from billing.repository import INSTANT
from db.repository import TenantRepository, select_owned
from db.rollup_intervals import Unit

_DAY = timedelta(days=1)


class ChargeRepository(TenantRepository):
    """Queries one tenant's charges, less reversals, each at its own time."""

    async def find(self, charge_id: str) -> Charge | None:
        query = self.select_own(Charge).where(Charge.id == charge_id)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def total(self, start: datetime, end: datetime) -> int:
        """Returns micro-USD in [start, end)."""
        return sum(row.cost for row in await self.sums(start, end, None))

    async def sums(self, start: datetime, end: datetime, unit: Unit | None) -> list[Any]:
        """Returns rows (bucket, kind, reference, quantity, cost) in [start, end), by the first three. `unit`
        is the bucket's width; None means one bucket that begins at `start`.
        """
        found = await self.execute_own(_sums(unit), start=start, end=end)
        return list(found.all())


@lru_cache
def _sums(unit: Unit | None) -> Select[Any]:
    def bucket(at: Any) -> ColumnElement[datetime]:
        whole = (
            bindparam("start", type_=INSTANT)
            if unit is None
            else func.date_trunc(unit, at, "UTC", type_=INSTANT)
        )
        return whole.label("bucket")

    def within(at: Any) -> ColumnElement[bool]:
        return and_(at >= bindparam("start", type_=INSTANT), at < bindparam("end", type_=INSTANT))

    what = (Charge.kind, Charge.reference)
    charged = select_owned(Charge, bucket(Charge.at), *what, Charge.quantity, Charge.cost)
    reversed_ = select_owned(
        Reversal,
        bucket(Reversal.at),
        *what,
        (-Charge.quantity).label("quantity"),
        (-Reversal.cost).label("cost"),
    ).join(Charge, Charge.id == Reversal.charge_id)
    rows = union_all(charged.where(within(Charge.at)), reversed_.where(within(Reversal.at))).subquery()
    keys = (rows.c.bucket, rows.c.kind, rows.c.reference)
    sums = (cast(func.sum(rows.c[name]), BigInteger).label(name) for name in ("quantity", "cost"))
    return select(*keys, *sums).group_by(*keys).order_by(*keys)


class ChargeBook:
    """Queries all tenants' charges and what they are made from. Its session's scope is every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def add(self, charges: Sequence[DueCharge]) -> list[DueCharge]:
        """Adds the charges that do not exist yet, and returns them."""
        if not charges:
            return []
        made = insert(Charge).on_conflict_do_nothing(index_elements=[Charge.id]).returning(Charge.id)
        ids = set((await self.session.execute(made, [asdict(charge) for charge in charges])).scalars())
        return [charge for charge in charges if charge.id in ids]

    async def first_uncharged_day(self) -> date | None:
        """Returns the day after the last charged day; before there is any, the first day with stored bytes;
        None if nothing was ever stored.
        """
        last = (await self.session.execute(select(func.max(ChargedDay.day)))).scalar_one()
        if last is not None:
            return last + _DAY
        first = (await self.session.execute(select(func.min(StoredAdapter.since)))).scalar_one()
        return None if first is None else first.astimezone(UTC).date()

    async def take_day(self, day: date, now: datetime) -> bool:
        """Marks a day as charged, in the transaction that charges it. Returns False if it already is."""
        taken = insert(ChargedDay).values(day=day, charged_at=now).on_conflict_do_nothing()
        return (await self.session.execute(taken.returning(ChargedDay.day))).scalar_one_or_none() is not None

    async def stored(self, start: datetime, end: datetime) -> list[StoredAdapter]:
        """Returns the versions stored at any time in [start, end)."""
        query = select(StoredAdapter).where(
            StoredAdapter.since < end, or_(StoredAdapter.until.is_(None), StoredAdapter.until > start)
        )
        ordered = query.order_by(StoredAdapter.adapter_id, StoredAdapter.version, StoredAdapter.number)
        return list((await self.session.execute(ordered)).scalars())

    async def take_calibrations(self, limit: int = 1000) -> list[CalibrationDue]:
        """Removes jobs from the list and returns them, in the transaction that charges them. Skips jobs that
        another transaction is charging.
        """
        query = select(CalibrationDue).order_by(CalibrationDue.job_id).limit(limit)
        rows = list((await self.session.execute(query.with_for_update(skip_locked=True))).scalars())
        taken = delete(CalibrationDue).where(CalibrationDue.job_id.in_([row.job_id for row in rows]))
        await self.session.execute(taken.execution_options(synchronize_session=False))
        return rows
