"""Queries sums of a time range by what decides the price. The session's scope is every tenant."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.models import Charge, Reversal, UsageRollupDay
from tenants.models import OPERATOR_TENANT, Plan, Tenant


class PricedSums:
    """Queries sums over [start, end), whole UTC days."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def used(self, start: datetime, end: datetime) -> Sequence[Any]:
        """Returns rows (tenant_id, service_tier, on_adapter, num_requests, prompt_tokens, cached_tokens,
        completion_tokens, cost).
        """
        day = UsageRollupDay
        on_adapter = (day.adapter_id != "").label("on_adapter")
        own_cost = (day.cost - day.surcharge).label(
            "cost"
        )  # the owners' surcharges are not the operator's price
        sums = (day.num_requests, day.prompt_tokens, day.cached_tokens, day.completion_tokens, own_cost)
        query = (
            select(
                day.tenant_id,
                day.service_tier,
                on_adapter,
                *(func.sum(column).label(column.name) for column in sums),
            )
            .where(day.day >= start, day.day < end)
            .group_by(day.tenant_id, day.service_tier, on_adapter)
        )
        return (await self.session.execute(query)).all()

    async def charged(self, start: datetime, end: datetime) -> Sequence[Any]:
        """Returns rows (tenant_id, kind, quantity, cost) of charges, less reversed charges."""
        charged = select(
            Charge.tenant_id, Charge.kind, Charge.quantity.label("quantity"), Charge.cost.label("cost")
        ).where(Charge.at >= start, Charge.at < end)
        taken_back = (
            select(Charge.tenant_id, Charge.kind, -Charge.quantity, -Charge.cost)
            .join(Reversal, Reversal.charge_id == Charge.id)
            .where(Reversal.at >= start, Reversal.at < end)
        )
        lines = charged.union_all(taken_back).subquery()
        query = select(
            lines.c.tenant_id,
            lines.c.kind,
            func.sum(lines.c.quantity).label("quantity"),
            func.sum(lines.c.cost).label("cost"),
        ).group_by(lines.c.tenant_id, lines.c.kind)
        return (await self.session.execute(query)).all()

    async def plans(self) -> Sequence[Any]:
        """Returns rows (id, name, terms and batch_price_percent of its plan) of every tenant."""
        query = (
            select(Tenant.id, Tenant.name, Plan.terms, Plan.batch_price_percent)
            .join(Plan, Plan.id == Tenant.plan_id)
            .where(Tenant.id != OPERATOR_TENANT)
        )
        return (await self.session.execute(query)).all()

    async def on_plan(self, plan_id: str) -> dict[str, str]:
        """Returns the names of the tenants on a plan, by id."""
        query = select(Tenant.id, Tenant.name).where(Tenant.plan_id == plan_id, Tenant.id != OPERATOR_TENANT)
        return {row.id: row.name for row in await self.session.execute(query)}
