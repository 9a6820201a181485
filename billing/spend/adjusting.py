"""Reports costs that no request reserved to the budgets in Redis: storage, calibration, and reversals.

Each cost counts once: it is held in Redis, then recorded as reported, then settled. Until it is recorded, it
is in no count that starts from the ledger (`billing.window_usage`), and from then on in all of them, even if
a process dies in between. A month's limit counts what the ledger dates in that month.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import structlog

from billing.invoices.repository import AccountRepository
from billing.months import begin, month_of
from billing.spend.repository import AdjustmentRepository, AllAdjustments, UnreportedCost
from db.session import EVERY_TENANT, Database
from tenants.limits.kinds import Limit, Metric
from tenants.limits.repository import LimitRepository
from tenants.quotas.unreserved_spend import UnreservedSpend

log = structlog.get_logger(__name__)

BATCH = 500


class SpendAdjusting:
    def __init__(self, database: Database, unreserved: UnreservedSpend) -> None:
        self._database = database
        self._unreserved = unreserved

    async def report(self, now: datetime, *, lately: timedelta | None = None) -> int:
        """Reports costs that the ledger has and the budgets do not; returns how many. `lately` limits the
        search to costs made within it; older ones wait for a call without it.

        Raises DatabaseUnavailable, RedisError: the rest is reported by the next call.
        """
        async with self._database.read(EVERY_TENANT) as session:
            adjustments = AllAdjustments(session)
            unsettled = await adjustments.unsettled(BATCH)
            unreported = await adjustments.unreported(BATCH, lately)
        for one in unsettled:
            await self._settle(one, await self._budgets(one, now), now)
        num_reported = 0
        for one in unreported:
            num_reported += await self._report(one, now)
        return num_reported

    async def _report(self, one: UnreportedCost, now: datetime) -> bool:
        budgets = await self._budgets(one, now)
        if budgets:
            await self._unreserved.hold(one.tenant_id, one.id, budgets, one.amount)
        async with self._database.write(one.tenant_id) as session:
            adjustments = AdjustmentRepository(session, one.tenant_id)
            noted = await adjustments.note(one, settled=not budgets, now=now)
        if budgets:
            await self._settle(one, budgets, now)
        return noted

    async def _settle(self, one: UnreportedCost, budgets: Sequence[Limit], now: datetime) -> None:
        if not await self._unreserved.settle(one.tenant_id, one.id, one.amount):
            # Redis lost what it held. A count that started from the ledger since then has the cost already,
            # and counts it twice until its next window: better than not at all.
            log.warning("Redis lost a cost, which is reported again", cost_id=one.id, tenant_id=one.tenant_id)
            await self._unreserved.hold(one.tenant_id, one.id, budgets, one.amount)
            await self._unreserved.settle(one.tenant_id, one.id, one.amount)
        async with self._database.write(one.tenant_id) as session:
            await AdjustmentRepository(session, one.tenant_id).note_settled(one.id, now)

    async def _budgets(self, one: UnreportedCost, now: datetime) -> Sequence[Limit]:
        """Returns the tenant's own limits that count the cost. It belongs to no project, key or model."""
        async with self._database.read(one.tenant_id) as session:
            limits = await LimitRepository(session, one.tenant_id).effective() or ()
            periods = await AccountRepository(session, one.tenant_id).periods()
        month = begin(month_of(now))
        counting = set()
        if one.at >= month:
            counting.add(Metric.SPEND_PER_MONTH)
        if any(
            period.since <= one.at and not (period.until and period.until <= one.at) for period in periods
        ):
            counting.add(Metric.PREPAID_BALANCE)
        return [
            limit
            for limit in limits
            if limit.scope == "tenant" and not limit.model and limit.metric in counting
        ]
