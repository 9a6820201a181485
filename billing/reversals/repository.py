"""Queries on reversals; what one takes back comes off the rollups with it."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import text

from billing.models import Reversal
from billing.rollups import KEYS, SUMS, add_sql
from db.repository import TenantRepository
from db.rollup_intervals import UNITS

_TAKE_BACK = [
    text(
        add_sql(
            unit,
            f"(SELECT tenant_id, at, {', '.join(KEYS)}, {', '.join(f'-{name} AS {name}' for name in SUMS)} "
            "FROM reversals WHERE id = :id) AS taken_back",
        )
    )
    for unit in UNITS
]


class ReversalRepository(TenantRepository):
    """One tenant's reversals."""

    async def of_request(self, submitted_at: datetime, request_id: str) -> Reversal | None:
        query = self.select_own(Reversal).where(
            Reversal.submitted_at == submitted_at, Reversal.request_id == request_id
        )
        return (await self.session.execute(query)).scalar_one_or_none()

    async def of_charge(self, charge_id: str) -> Reversal | None:
        query = self.select_own(Reversal).where(Reversal.charge_id == charge_id)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def add(self, reversal: Reversal) -> None:
        """Write it down, and take what it takes back off the rollups of its minute. Hold the ledger."""
        self.add_own(reversal)
        await self.session.flush()
        if reversal.request_id is not None:
            for statement in _TAKE_BACK:
                await self.session.execute(statement, {"id": reversal.id})
