"""Queries on several tenants' sums at once. Their sessions' scope is every tenant."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import func, select, text, union_all
from sqlalchemy.ext.asyncio import AsyncSession

from billing.models import Charge, Reversal, UsageRollupDay

# Each tenant's is the end of its part of the primary key: one step into an index, however much it has used.
_LAST = text("""
SELECT t.id, (SELECT max(minute) FROM usage_rollups r WHERE r.tenant_id = t.id) AS minute
FROM unnest(CAST(:tenants AS text[])) AS t(id)
""")


class CustomerSums:
    """Of the tenants that are given."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def used(self, tenant_ids: Sequence[str], start: datetime, end: datetime) -> Sequence[Any]:
        """Rows (tenant_id, num_requests, prompt_tokens, completion_tokens, cost) of whole UTC days."""
        day = UsageRollupDay
        sums = (day.num_requests, day.prompt_tokens, day.completion_tokens, day.cost)
        query = (
            select(day.tenant_id, *(func.sum(column).label(column.key) for column in sums))
            .where(day.tenant_id.in_(tenant_ids), day.day >= start, day.day < end)
            .group_by(day.tenant_id)
        )
        return (await self.session.execute(query)).all()

    async def charged(self, tenant_ids: Sequence[str], start: datetime, end: datetime) -> dict[str, int]:
        """By tenant, what was charged besides requests, less what of such charges was taken back."""
        charged = select(Charge.tenant_id, Charge.cost).where(
            Charge.tenant_id.in_(tenant_ids), Charge.at >= start, Charge.at < end
        )
        taken = select(Reversal.tenant_id, -Reversal.cost).where(
            Reversal.tenant_id.in_(tenant_ids),
            Reversal.at >= start,
            Reversal.at < end,
            Reversal.charge_id.is_not(None),
        )
        rows = union_all(charged, taken).subquery()
        query = select(rows.c.tenant_id, func.sum(rows.c.cost)).group_by(rows.c.tenant_id)
        return {tenant_id: int(cost) for tenant_id, cost in (await self.session.execute(query)).all()}

    async def last(self, tenant_ids: Sequence[str]) -> dict[str, datetime | None]:
        """By tenant, the minute of its latest request."""
        rows = await self.session.execute(_LAST, {"tenants": list(tenant_ids)})
        return {row.id: row.minute for row in rows}
