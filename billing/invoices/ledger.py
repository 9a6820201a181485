"""The ledger in the words of bills: a tenant's stretch of time as lines, and as one amount.

Owns how costs are told apart on a bill: input, cached input and output of each model and class of service;
storage; calibration. What was reversed is taken off where it was counted, when it was reversed.
"""

from __future__ import annotations

from datetime import UTC, date, datetime

from sqlalchemy.ext.asyncio import AsyncSession

from billing.invoices.lines import LedgerLine, LineKind
from billing.months import span
from billing.totals import LedgerTotals

_LATEST = datetime(2100, 1, 1, tzinfo=UTC)
_CHARGES: dict[str, tuple[LineKind, str]] = {
    "adapter_storage": ("storage", "byte_days"),
    "calibration": ("calibration", "jobs"),
}


class MonthLedger:
    """One tenant's, as one session sees it."""

    def __init__(self, session: AsyncSession, tenant_id: str) -> None:
        self._totals = LedgerTotals(session, tenant_id)

    async def total(self, start: datetime, end: datetime | None) -> int:
        """Micro-USD in [start, end), whole minutes; None: without end."""
        return sum(line.cost for line in await self._totals.costs(start, end or _LATEST, group_by=()))

    async def lines(self, month: date) -> list[LedgerLine]:
        """What a month comes to now."""
        return [
            LedgerLine(
                *_CHARGES.get(line.kind, ("usage", line.kind)),
                line.model,
                line.service_tier,
                line.quantity,
                line.cost,
            )
            for line in await self._totals.costs(*span(month))
        ]
