"""Queries on spend alerts, and on costs that budgets have not been told of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, Select, cast, exists, func, select, union_all
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from billing.models import Charge, Reversal
from billing.spend.models import SpendAdjustment, SpendAlert, SpendAlertRaised
from db.cursors import fetch_page
from db.repository import TenantRepository
from tenants.audit.repository import deleted_ids
from tenants.repository import is_id


class SpendAlertRepository(TenantRepository):
    async def find(self, alert_id: str, project_id: str | None, *, lock: bool = False) -> SpendAlert | None:
        if not is_id(alert_id):
            return None
        query = self._of(project_id).where(SpendAlert.id == alert_id)
        if lock:
            query = query.with_for_update()
        return (await self.session.execute(query)).scalar_one_or_none()

    async def page(
        self, project_id: str | None, *, after: str | None, limit: int, newest_first: bool
    ) -> list[SpendAlert]:
        listed = self._of(project_id)
        page = await fetch_page(
            self.session,
            listed,
            SpendAlert.id,
            after=after,
            limit=limit,
            newest_first=newest_first,
            deleted=deleted_ids(self.tenant_id, "spend_alert.deleted", project_id),
        )
        return list(page.scalars())

    async def all(self) -> list[SpendAlert]:
        """Of the tenant as a whole and of its projects, the oldest first."""
        query = self.select_own(SpendAlert).order_by(SpendAlert.id)
        return list((await self.session.execute(query)).scalars())

    async def one(self, alert_id: str) -> SpendAlert | None:
        """Whosever it is of the tenant's."""
        if not is_id(alert_id):
            return None
        query = self.select_own(SpendAlert).where(SpendAlert.id == alert_id)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def raised(self, month: date) -> dict[str, datetime]:
        """By alert, when it was raised last for a month."""
        row = SpendAlertRaised
        query = (
            self.select_own(row, row.alert_id, func.max(row.at))
            .where(row.month == month)
            .group_by(row.alert_id)
        )
        return dict((await self.session.execute(query)).tuples().all())

    async def count(self) -> int:
        return (await self.session.execute(self.select_own(SpendAlert, func.count()))).scalar_one()

    async def note_raised(self, alert_id: str, month: date, threshold: int, now: datetime) -> bool:
        """Whether it was not, for that month and threshold."""
        values = {
            "alert_id": alert_id,
            "month": month,
            "threshold": threshold,
            "tenant_id": self.tenant_id,
            "at": now,
        }
        noted = insert(SpendAlertRaised).values(values).on_conflict_do_nothing()
        found = await self.session.execute(noted.returning(SpendAlertRaised.alert_id))
        return found.scalar_one_or_none() is not None

    def _of(self, project_id: str | None) -> Select[Any]:
        """Those of a project; None: of the tenant as a whole."""
        return self.select_own(SpendAlert).where(SpendAlert.project_id.is_not_distinct_from(project_id))


class AllSpendAlerts:
    """Of every tenant, for whoever raises them."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def waiting(self, month: date) -> list[SpendAlert]:
        """But for those with an amount that was reached this month already."""
        raised = exists().where(
            SpendAlertRaised.alert_id == SpendAlert.id,
            SpendAlertRaised.month == month,
            SpendAlertRaised.threshold == SpendAlert.amount,
        )
        query = select(SpendAlert).where(~raised).order_by(SpendAlert.tenant_id, SpendAlert.id)
        return list((await self.session.execute(query)).scalars())


@dataclass(frozen=True, slots=True)
class Untold:
    """A charge or a reversal, as budgets count it."""

    id: str
    tenant_id: str
    at: datetime
    amount: int
    """Micro-USD; less than nothing where a cost is taken back."""


def _adjustments(lately: timedelta | None = None) -> Any:
    """Rows (id, tenant_id, at, amount) of the ledger that no request's reservation has; `lately`: those alone
    that were made within it.
    """
    charges = select(Charge.id, Charge.tenant_id, Charge.at, Charge.cost.label("amount"))
    reversals = select(Reversal.id, Reversal.tenant_id, Reversal.at, (-Reversal.cost).label("amount"))
    if lately is not None:
        # By the database's clock, which has dated them.
        charges = charges.where(Charge.created_at >= func.now() - lately)
        reversals = reversals.where(Reversal.created_at >= func.now() - lately)
    return union_all(charges, reversals).subquery("adjustments")


class AdjustmentRepository(TenantRepository):
    """One tenant's costs that are no request's, as far as its budgets know of them."""

    async def untold(self, start: datetime, end: datetime | None) -> int:
        """Micro-USD in [start, end) that the ledger has and budgets were not told of."""
        found = _adjustments()
        told = exists().where(SpendAdjustment.id == found.c.id)
        query = select(cast(func.coalesce(func.sum(found.c.amount), 0), BigInteger)).where(
            found.c.tenant_id == self.tenant_id, found.c.at >= start, ~told
        )
        if end is not None:
            query = query.where(found.c.at < end)
        return int((await self.session.execute(query)).scalar_one())

    async def note(self, untold: Untold, settled: bool, now: datetime) -> bool:
        """That budgets are told of it; whether they were not before."""
        values = {
            "id": untold.id,
            "tenant_id": self.tenant_id,
            "at": untold.at,
            "amount": untold.amount,
            "told_at": now,
            "settled_at": now if settled else None,
        }
        noted = insert(SpendAdjustment).values(values).on_conflict_do_nothing()
        found = await self.session.execute(noted.returning(SpendAdjustment.id))
        return found.scalar_one_or_none() is not None

    async def note_settled(self, adjustment_id: str, now: datetime) -> None:
        settled = self.update_own(SpendAdjustment).where(SpendAdjustment.id == adjustment_id)
        await self.session.execute(settled.values(settled_at=now))


class AllAdjustments:
    """Of every tenant, for whoever tells budgets."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def untold(self, limit: int, lately: timedelta | None = None) -> list[Untold]:
        """The earliest first; with `lately`, of those made within it: all there ever were take longer to look
        through with every year.
        """
        found = _adjustments(lately)
        told = exists().where(SpendAdjustment.id == found.c.id)
        query = select(found).where(~told).order_by(found.c.at, found.c.id).limit(limit)
        return [
            Untold(row.id, row.tenant_id, row.at, row.amount) for row in await self.session.execute(query)
        ]

    async def unsettled(self, limit: int) -> list[Untold]:
        """Told, and Redis may not have heard the end of it."""
        query = (
            select(SpendAdjustment)
            .where(SpendAdjustment.settled_at.is_(None))
            .order_by(SpendAdjustment.told_at)
            .limit(limit)
        )
        rows = (await self.session.execute(query)).scalars()
        return [Untold(row.id, row.tenant_id, row.at, row.amount) for row in rows]
