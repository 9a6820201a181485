"""Reads the ledger for bills: a tenant's month as lines, and a time range as one amount.

There is a line for each kind: input, cached input and output tokens and the surcharge of each model and
service tier; storage; calibration; and, negative, what shared adapters earned. Reversals are subtracted from
the same lines, at their own time.
"""

from __future__ import annotations

from datetime import UTC, date, datetime

from sqlalchemy.ext.asyncio import AsyncSession

from billing.earnings import EarningsRepository
from billing.invoices.lines import LedgerLine, LineKind
from billing.months import span
from billing.totals import LedgerTotals

_LATEST = datetime(2100, 1, 1, tzinfo=UTC)
_CHARGES: dict[str, tuple[LineKind, str]] = {
    "adapter_storage": ("storage", "byte_days"),
    "calibration": ("calibration", "jobs"),
}


class MonthLedger:
    """Reads one tenant's ledger within one session."""

    def __init__(self, session: AsyncSession, tenant_id: str) -> None:
        self._totals = LedgerTotals(session, tenant_id)
        self._earnings = EarningsRepository(session, tenant_id)

    async def total(self, start: datetime, end: datetime | None) -> int:
        """Returns micro-USD of usage and charges in [start, end), whole minutes; None means without end. What
        the tenant earned is not part of it: it is settled by invoices alone.
        """
        return sum(line.cost for line in await self._totals.costs(start, end or _LATEST, group_by=()))

    async def lines(self, month: date) -> list[LedgerLine]:
        """Returns the month's lines as the ledger has them now."""
        return [
            LedgerLine(
                *_CHARGES.get(line.kind, ("usage", line.kind)),
                line.model,
                line.service_tier,
                line.quantity,
                line.cost,
            )
            for line in await self._totals.costs(*span(month))
        ] + [
            LedgerLine(
                "earnings",
                "share",
                line.model,
                "",
                line.prompt_tokens + line.completion_tokens,
                -line.owner_part,
            )
            for line in await self._earnings.of(*span(month))
        ]
