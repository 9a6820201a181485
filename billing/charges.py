"""Charges that are no request's: storage of packed adapters by the day, and calibration jobs that ended well.

Owns what they come to, and that each is charged once: a charge's id says what for, so charging again changes
nothing. Refuses to know adapters and jobs: what is stored and which jobs ended well the database notes by
itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, and_, cast, delete, func, literal, or_, select, union_all
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from billing.models import CalibrationDue, Charge, ChargedDay, Price, Reversal, StoredAdapter
from billing.repository import INSTANT, PriceList
from billing.rollups import Unit
from db.repository import TenantRepository
from db.session import EVERY_TENANT, Database, WriteSession

STORAGE, CALIBRATION = "adapter_storage", "calibration"
GB = 10**9
SETTLED_AFTER = timedelta(minutes=10)
"""How long after a day's end transactions that began in it may still be noting what is stored."""
_DAY = timedelta(days=1)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Due:
    """A charge to be made."""

    id: str
    tenant_id: str
    kind: str
    at: datetime
    quantity: int
    price_id: str
    unit_price: int
    cost: int
    reference: str


OnCharged = Callable[[Sequence[Due]], Awaitable[None]]


def byte_days(spans: Iterable[tuple[int, datetime, datetime | None]], day: datetime) -> int:
    """What (size, since, until) come to on the UTC day that begins at `day`, rounded up once."""
    end = day + _DAY
    total = 0
    for size, since, until in spans:
        stored = min(until or end, end) - max(since, day)
        total += size * max(stored // _MICROSECOND, 0)
    return -(-total // (_DAY // _MICROSECOND))


def storage_cost(quantity: int, gb_day: int) -> int:
    """Micro-USD of byte-days, rounded up."""
    return -(-quantity * gb_day // GB)


class ChargeRepository(TenantRepository):
    """One tenant's charges, less those that were reversed: both when they were made."""

    async def find(self, charge_id: str) -> Charge | None:
        query = self.select_own(Charge).where(Charge.id == charge_id)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def total(self, start: datetime, end: datetime) -> int:
        """Micro-USD in [start, end)."""
        return sum(row.cost for row in await self.sums(start, end, None))

    async def sums(self, start: datetime, end: datetime, unit: Unit | None) -> list[Any]:
        """Rows (bucket, kind, reference, quantity, cost) in [start, end), by the first three. `unit` is the
        bucket's width, None: one bucket, of `start`.
        """

        def bucket(at: Any) -> ColumnElement[datetime]:
            whole = (
                literal(start, INSTANT) if unit is None else func.date_trunc(unit, at, "UTC", type_=INSTANT)
            )
            return whole.label("bucket")

        def within(at: Any) -> ColumnElement[bool]:
            return and_(at >= start, at < end)

        what = (Charge.kind, Charge.reference)
        charged = self.select_own(Charge, bucket(Charge.at), *what, Charge.quantity, Charge.cost)
        reversed_ = self.select_own(
            Reversal,
            bucket(Reversal.at),
            *what,
            (-Charge.quantity).label("quantity"),
            (-Reversal.cost).label("cost"),
        ).join(Charge, Charge.id == Reversal.charge_id)
        rows = union_all(charged.where(within(Charge.at)), reversed_.where(within(Reversal.at))).subquery()
        keys = (rows.c.bucket, rows.c.kind, rows.c.reference)
        sums = (cast(func.sum(rows.c[name]), BigInteger).label(name) for name in ("quantity", "cost"))
        query = select(*keys, *sums).group_by(*keys).order_by(*keys)
        return list((await self.session.execute(query)).all())


class ChargeBook:
    """All tenants' charges, and what they are made of. Its session's scope is every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def add(self, dues: Sequence[Due]) -> list[Due]:
        """Make those charges that were not made before; which they were."""
        if not dues:
            return []
        made = insert(Charge).on_conflict_do_nothing(index_elements=[Charge.id]).returning(Charge.id)
        ids = set((await self.session.execute(made, [asdict(due) for due in dues])).scalars())
        return [due for due in dues if due.id in ids]

    async def first_uncharged_day(self) -> date | None:
        """The day after the last that is charged; the first on which anything was stored before there is
        any, None where nothing ever was.
        """
        last = (await self.session.execute(select(func.max(ChargedDay.day)))).scalar_one()
        if last is not None:
            return last + _DAY
        first = (await self.session.execute(select(func.min(StoredAdapter.since)))).scalar_one()
        return None if first is None else first.astimezone(UTC).date()

    async def take_day(self, day: date, now: datetime) -> bool:
        """Note that a day is charged, in the transaction that does so; False: it is already."""
        taken = insert(ChargedDay).values(day=day, charged_at=now).on_conflict_do_nothing()
        return (await self.session.execute(taken.returning(ChargedDay.day))).scalar_one_or_none() is not None

    async def stored(self, start: datetime, end: datetime) -> list[StoredAdapter]:
        """What was stored at any time in [start, end)."""
        query = select(StoredAdapter).where(
            StoredAdapter.since < end, or_(StoredAdapter.until.is_(None), StoredAdapter.until > start)
        )
        ordered = query.order_by(StoredAdapter.adapter_id, StoredAdapter.version, StoredAdapter.number)
        return list((await self.session.execute(ordered)).scalars())

    async def take_calibrations(self, limit: int = 1000) -> list[CalibrationDue]:
        """Jobs to be charged, taken off the list in the transaction that charges them; those that another is
        charging are left to it.
        """
        query = select(CalibrationDue).order_by(CalibrationDue.job_id).limit(limit)
        rows = list((await self.session.execute(query.with_for_update(skip_locked=True))).scalars())
        taken = delete(CalibrationDue).where(CalibrationDue.job_id.in_([row.job_id for row in rows]))
        await self.session.execute(taken.execution_options(synchronize_session=False))
        return rows


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


def calibration_due(job: CalibrationDue, price: Price) -> Due:
    """The charge for a job."""
    return Due(
        id=f"calibration:{job.job_id}",
        tenant_id=job.tenant_id,
        kind=CALIBRATION,
        at=job.finished_at,
        quantity=1,
        price_id=price.id,
        unit_price=price.calibration_job,
        cost=price.calibration_job,
        reference=job.job_id,
    )


def storage_dues(stored: Sequence[StoredAdapter], start: datetime, price: Price) -> list[Due]:
    """A charge for each version that was stored on the UTC day that begins at `start`."""
    dues = []
    for (tenant_id, adapter_id, version), spans in groupby(
        stored, key=lambda one: (one.tenant_id, one.adapter_id, one.version)
    ):
        quantity = byte_days(((one.size, one.since, one.until) for one in spans), start)
        cost = storage_cost(quantity, price.adapter_gb_day)
        reference = f"{adapter_id}@{version}"
        dues.append(
            Due(
                id=f"storage:{start:%Y-%m-%d}:{reference}",
                tenant_id=tenant_id,
                kind=STORAGE,
                at=start + _DAY - timedelta(seconds=1),
                quantity=quantity,
                price_id=price.id,
                unit_price=price.adapter_gb_day,
                cost=cost,
                reference=reference,
            )
        )
    return [due for due in dues if due.quantity]


def _begin(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
