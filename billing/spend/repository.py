"""Queries spend alerts, and costs that are not yet reported to the budgets."""

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
        """Returns the alerts of the tenant and of its projects, the oldest first."""
        query = self.select_own(SpendAlert).order_by(SpendAlert.id)
        return list((await self.session.execute(query)).scalars())

    async def one(self, alert_id: str) -> SpendAlert | None:
        """Returns an alert of the tenant or of any of its projects."""
        if not is_id(alert_id):
            return None
        query = self.select_own(SpendAlert).where(SpendAlert.id == alert_id)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def raised(self, month: date) -> dict[str, datetime]:
        """Returns when each alert was last raised for a month."""
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
        """Records that an alert was raised; returns whether it is the first time for month and threshold."""
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
        """Selects the alerts of a project; None means those of the tenant as a whole."""
        return self.select_own(SpendAlert).where(SpendAlert.project_id.is_not_distinct_from(project_id))


class AllSpendAlerts:
    """Queries the alerts of every tenant, to raise them."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def waiting(self, month: date) -> list[SpendAlert]:
        """Returns all alerts except those whose amount was already reached this month."""
        raised = exists().where(
            SpendAlertRaised.alert_id == SpendAlert.id,
            SpendAlertRaised.month == month,
            SpendAlertRaised.threshold == SpendAlert.amount,
        )
        query = select(SpendAlert).where(~raised).order_by(SpendAlert.tenant_id, SpendAlert.id)
        return list((await self.session.execute(query)).scalars())


@dataclass(frozen=True, slots=True)
class UnreportedCost:
    """A charge or a reversal that the budgets do not have yet."""

    id: str
    tenant_id: str
    at: datetime
    amount: int
    """Micro-USD, negative for a reversal."""


def _adjustments(lately: timedelta | None = None) -> Any:
    """Selects the ledger's rows (id, tenant_id, at, amount) that no request reserved; with `lately`, those
    made within it.
    """
    charges = select(Charge.id, Charge.tenant_id, Charge.at, Charge.cost.label("amount"))
    reversals = select(Reversal.id, Reversal.tenant_id, Reversal.at, (-Reversal.cost).label("amount"))
    if lately is not None:
        # By the database's clock, which set the times.
        charges = charges.where(Charge.created_at >= func.now() - lately)
        reversals = reversals.where(Reversal.created_at >= func.now() - lately)
    return union_all(charges, reversals).subquery("adjustments")


class AdjustmentRepository(TenantRepository):
    """Queries one tenant's costs that no request reserved, and which of them its budgets have."""

    async def unreported(self, start: datetime, end: datetime | None) -> int:
        """Returns micro-USD in [start, end) that the ledger has and the budgets do not."""
        found = _adjustments()
        reported = exists().where(SpendAdjustment.id == found.c.id)
        query = select(cast(func.coalesce(func.sum(found.c.amount), 0), BigInteger)).where(
            found.c.tenant_id == self.tenant_id, found.c.at >= start, ~reported
        )
        if end is not None:
            query = query.where(found.c.at < end)
        return int((await self.session.execute(query)).scalar_one())

    async def note(self, unreported: UnreportedCost, settled: bool, now: datetime) -> bool:
        """Records that a cost is reported to the budgets; returns whether it was not before."""
        values = {
            "id": unreported.id,
            "tenant_id": self.tenant_id,
            "at": unreported.at,
            "amount": unreported.amount,
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
    """Queries the unreported costs of every tenant, to report them."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def unreported(self, limit: int, lately: timedelta | None = None) -> list[UnreportedCost]:
        """Returns unreported costs, the earliest first; with `lately`, those made within it, since searching
        all takes longer with every year.
        """
        found = _adjustments(lately)
        reported = exists().where(SpendAdjustment.id == found.c.id)
        query = select(found).where(~reported).order_by(found.c.at, found.c.id).limit(limit)
        return [
            UnreportedCost(row.id, row.tenant_id, row.at, row.amount)
            for row in await self.session.execute(query)
        ]

    async def unsettled(self, limit: int) -> list[UnreportedCost]:
        """Returns reported costs that Redis may not have settled."""
        query = (
            select(SpendAdjustment)
            .where(SpendAdjustment.settled_at.is_(None))
            .order_by(SpendAdjustment.told_at)
            .limit(limit)
        )
        rows = (await self.session.execute(query)).scalars()
        return [UnreportedCost(row.id, row.tenant_id, row.at, row.amount) for row in rows]
