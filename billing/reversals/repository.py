"""Queries reversals, and takes what a reversal takes back off the rollups."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import text

from billing.models import Reversal
from billing.rollups import EARNING_SUMS, KEYS, SUMS, add_sql, earn_sql
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

_TAKE_BACK_EARNINGS = text(
    earn_sql(
        f"(SELECT owner_id, at, share_id, model, {', '.join(f'-{name} AS {name}' for name in EARNING_SUMS)} "
        "FROM reversals WHERE id = :id) AS taken_back"
    )
)


class ReversalRepository(TenantRepository):
    """Queries one tenant's reversals."""

    async def of_request(self, submitted_at: datetime, request_id: str) -> Reversal | None:
        query = self.select_own(Reversal).where(
            Reversal.submitted_at == submitted_at, Reversal.request_id == request_id
        )
        return (await self.session.execute(query)).scalar_one_or_none()

    async def of_charge(self, charge_id: str) -> Reversal | None:
        query = self.select_own(Reversal).where(Reversal.charge_id == charge_id)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def add(self, reversal: Reversal) -> None:
        """Adds the reversal and subtracts it from the rollups of its minute, and from what the owner of a
        shared adapter earned. The ledger must be held, in the scope of every tenant.
        """
        self.add_own(reversal)
        await self.session.flush()
        if reversal.request_id is not None:
            for statement in _TAKE_BACK:
                await self.session.execute(statement, {"id": reversal.id})
        if reversal.owner_id is not None:
            await self.session.execute(_TAKE_BACK_EARNINGS, {"id": reversal.id})
