"""What the ledger has of a budget: for a count that Redis does not have, or has lost.

Owns the sums. They are of whole minutes and the ledger is a second behind, so this is where a count begins,
not how it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from billing.charges import ChargeRepository
from billing.invoices.repository import AccountRepository
from billing.repository import UsageRepository
from billing.spend.repository import AdjustmentRepository
from db.session import Database, ReadSession
from tenants.limits.kinds import Limit, Measure


class WindowUsage:
    """Call it as `tenants.quotas.Seed`."""

    def __init__(
        self, database: Database, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._database = database
        self._clock = clock

    async def __call__(self, tenant_id: str, limit: Limit, start: datetime) -> int:
        """Of `limit`, since `start`; of a prepaid balance, in all times that were prepaid.

        Raises DatabaseUnavailable.
        """
        end = self._clock() + timedelta(minutes=1)
        async with self._database.read(tenant_id) as session:
            if limit.metric.kind != "ever":
                return await _used(session, tenant_id, limit, start, end)
            periods = await AccountRepository(session, tenant_id).periods()
            used = 0
            for period in periods:
                used += await _used(session, tenant_id, limit, period.since, period.until or end)
        return used


async def _used(session: ReadSession, tenant_id: str, limit: Limit, start: datetime, end: datetime) -> int:
    sums = await UsageRepository(session, tenant_id).since(start, end, limit)
    used = _amount(sums, limit.metric.measure)
    if limit.metric.measure == "spend" and limit.scope == "tenant" and not limit.model:
        # What is stored and calibrated is no project's, no key's and no model's.
        used += await ChargeRepository(session, tenant_id).total(start, end)
        # Of these, what budgets are still to be told of counts from when they are.
        used -= await AdjustmentRepository(session, tenant_id).untold(start, end)
    return used


def _amount(sums: Mapping[str, int], measure: Measure) -> int:
    amounts = {
        "requests": sums["num_requests"],
        "input_tokens": sums["prompt_tokens"],
        "output_tokens": sums["completion_tokens"],
        "tokens": sums["prompt_tokens"] + sums["completion_tokens"],
        "spend": sums["cost"],
    }
    return amounts[measure]
