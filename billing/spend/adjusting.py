"""Telling budgets of costs that no request reserved: storage, calibration, and what is taken back.

Owns that each counts once, and from when: held in Redis first, then noted, then settled. Until it is noted it
is in no count that begins with the ledger (`billing.window_usage`), from then on in all of them, whoever dies
in between. What a month's limit has of it is what the ledger dates in that month.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

from billing.invoices.repository import AccountRepository
from billing.months import begin, month_of
from billing.spend.repository import AdjustmentRepository, AllAdjustments, Untold
from db.session import EVERY_TENANT, Database
from tenants.limits.kinds import Limit, Metric
from tenants.limits.repository import LimitRepository
from tenants.quotas.unreserved_spend import UnreservedSpend

logger = logging.getLogger(__name__)

BATCH = 500


class SpendAdjusting:
    def __init__(self, database: Database, outside: UnreservedSpend) -> None:
        self._database = database
        self._outside = outside

    async def tell(self, now: datetime, *, lately: timedelta | None = None) -> int:
        """Tell budgets of what the ledger has and they do not; how many costs. `lately` looks for what was
        made within it: what is older waits for a call without.

        Raises DatabaseUnavailable, RedisError: then the rest is told the next time.
        """
        async with self._database.read(EVERY_TENANT) as session:
            adjustments = AllAdjustments(session)
            unsettled = await adjustments.unsettled(BATCH)
            untold = await adjustments.untold(BATCH, lately)
        for one in unsettled:
            await self._settle(one, await self._budgets(one, now), now)
        told = 0
        for one in untold:
            told += await self._tell(one, now)
        return told

    async def _tell(self, one: Untold, now: datetime) -> bool:
        budgets = await self._budgets(one, now)
        if budgets:
            await self._outside.hold(one.tenant_id, one.id, budgets, one.amount)
        async with self._database.write(one.tenant_id) as session:
            adjustments = AdjustmentRepository(session, one.tenant_id)
            noted = await adjustments.note(one, settled=not budgets, now=now)
        if budgets:
            await self._settle(one, budgets, now)
        return noted

    async def _settle(self, one: Untold, budgets: Sequence[Limit], now: datetime) -> None:
        if not await self._outside.settle(one.tenant_id, one.id, one.amount):
            # Redis has lost what it held. Perhaps a count has begun since that has it: then it counts twice
            # until the next begins; never not at all.
            logger.warning("the cost %s is told anew", one.id)
            await self._outside.hold(one.tenant_id, one.id, budgets, one.amount)
            await self._outside.settle(one.tenant_id, one.id, one.amount)
        async with self._database.write(one.tenant_id) as session:
            await AdjustmentRepository(session, one.tenant_id).note_settled(one.id, now)

    async def _budgets(self, one: Untold, now: datetime) -> Sequence[Limit]:
        """Those of the tenant as a whole that count it. What a project, a key or a model may spend does not
        have it.
        """
        async with self._database.read(one.tenant_id) as session:
            limits = await LimitRepository(session, one.tenant_id).in_force()
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
