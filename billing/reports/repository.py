"""Queries of reports that are not sums of one tenant's usage: the ledger's rows, page by page, those of one
request, and what the operator's margin is made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import func, or_, select, text, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from billing.models import Charge, Reversal, UsageRecord, UsageRollupDay
from db.repository import TenantRepository

Place = tuple[datetime, str]
"""Of a row in the ledger's order: its moment, and its id among those of the same moment."""


class LedgerRows(TenantRepository):
    """One tenant's rows."""

    async def page(
        self,
        model: type[Any],
        columns: Sequence[Any],
        at: Any,
        name: Any,
        start: datetime,
        end: datetime,
        after: Place | None,
        limit: int,
    ) -> Sequence[Any]:
        """`columns` of rows of `model` in [start, end), the oldest first, beginning after a place: `at` and
        `name` are the columns of it.
        """
        query = self.select_own(model, *columns).where(at >= (start if after is None else after[0]), at < end)
        if after is not None:
            query = query.where(tuple_(at, name) > tuple_(*after))
        return (await self.session.execute(query.order_by(at, name).limit(limit))).all()

    async def of_request(
        self, request_id: str, submitted_from: datetime, submitted_to: datetime
    ) -> Sequence[UsageRecord]:
        """The rows of a request submitted between the two, inclusive: its own, or one for each prompt of its
        list.
        """
        query = self.select_own(UsageRecord).where(
            UsageRecord.submitted_at.between(submitted_from, submitted_to),
            or_(
                UsageRecord.request_id == request_id,
                UsageRecord.request_id.startswith(f"{request_id}-", autoescape=True),
            ),
        )
        return (await self.session.execute(query.order_by(UsageRecord.request_id))).scalars().all()

    async def reversals_of(self, records: Sequence[UsageRecord]) -> Sequence[Reversal]:
        keys = [(record.submitted_at, record.request_id) for record in records]
        query = self.select_own(Reversal).where(tuple_(Reversal.submitted_at, Reversal.request_id).in_(keys))
        return (await self.session.execute(query)).scalars().all()


# The union of the times in which a request was on its engine: each adds what it goes beyond those before it.
# What is submitted in an hour before `start` may still run then.
_RUNS = """
    WITH runs AS (
        SELECT engine_id, tenant_id, service_tier,
               greatest(submitted_at + make_interval(secs => queue_seconds), :start) AS begins,
               least(submitted_at + make_interval(secs => total_seconds), :end) AS ends
        FROM usage_records
        WHERE submitted_at >= CAST(:start AS timestamptz) - interval '1 hour' AND submitted_at < :end
            AND queue_seconds IS NOT NULL AND total_seconds > queue_seconds
    )
"""
_BUSY = text(
    _RUNS
    + """
    , ordered AS (
        SELECT engine_id, begins, ends,
               max(ends) OVER (PARTITION BY engine_id ORDER BY begins, ends
                               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS until
        FROM runs WHERE ends > begins
    )
    SELECT engine_id,
           CAST(sum(extract(epoch FROM ends - greatest(begins, least(coalesce(until, begins), ends))))
                * 1000000 AS bigint) AS microseconds
    FROM ordered GROUP BY 1 ORDER BY 1
    """
)
_HELD = text(
    _RUNS
    + """
    SELECT tenant_id, service_tier,
           CAST(sum(extract(epoch FROM ends - begins)) * 1000000 AS bigint) AS microseconds
    FROM runs WHERE ends > begins GROUP BY 1, 2 ORDER BY 1, 2
    """
)


class OperatorLedger:
    """All tenants' ledger, over [start, end)."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def busy(self, start: datetime, end: datetime) -> Sequence[Any]:
        """Rows (engine_id, microseconds): for how long any request ran on each engine."""
        return (await self.session.execute(_BUSY, {"start": start, "end": end})).all()

    async def held(self, start: datetime, end: datetime) -> Sequence[Any]:
        """Rows (tenant_id, service_tier, microseconds): how long requests ran, each counted by itself."""
        return (await self.session.execute(_HELD, {"start": start, "end": end})).all()

    async def used(self, start: datetime, end: datetime) -> Sequence[Any]:
        """Rows (tenant_id, service_tier, num_requests, prompt_tokens, cached_tokens, completion_tokens, cost)
        of whole UTC days.
        """
        day = UsageRollupDay
        sums = (day.num_requests, day.prompt_tokens, day.cached_tokens, day.completion_tokens, day.cost)
        query = (
            select(day.tenant_id, day.service_tier, *(func.sum(column).label(column.key) for column in sums))
            .where(day.day >= start, day.day < end)
            .group_by(day.tenant_id, day.service_tier)
        )
        return (await self.session.execute(query)).all()

    async def charged(self, start: datetime, end: datetime) -> dict[str, int]:
        """By tenant, what was charged besides requests, less what of such charges was taken back."""
        costs: dict[str, int] = {}
        for model, sign, condition in (
            (Charge, 1, Charge.cost > 0),
            (Reversal, -1, Reversal.charge_id.is_not(None)),
        ):
            query = (
                select(model.tenant_id, func.sum(model.cost))
                .where(model.at >= start, model.at < end, condition)
                .group_by(model.tenant_id)
            )
            for tenant_id, cost in (await self.session.execute(query)).all():
                costs[tenant_id] = costs.get(tenant_id, 0) + sign * int(cost)
        return costs
