"""Sums the usage that counts to a budget from the ledger, for a counter that Redis does not have or has lost.

The sums are of whole minutes, and the ledger is about a second behind, so they are the counter's initial
value, not its updates.
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
    """Sums a budget's usage. Pass it as `tenants.quotas.UsageReader`."""

    def __init__(
        self, database: Database, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._database = database
        self._clock = clock

    async def __call__(self, tenant_id: str, limit: Limit, start: datetime) -> int:
        """Returns what counts to `limit` since `start`; for a prepaid balance, over all prepaid periods.

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
        # Storage and calibration belong to no project, key or model.
        used += await ChargeRepository(session, tenant_id).total(start, end)
        # Adjustments that are not yet reported to the budgets count from when they are.
        used -= await AdjustmentRepository(session, tenant_id).unreported(start, end)
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
