"""Queries what owners of shared adapters earned, one owner's or all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, cast, func, text
from sqlalchemy.ext.asyncio import AsyncSession

from billing.models import ShareEarning
from db.repository import TenantRepository


@dataclass(frozen=True, slots=True)
class EarningLine:
    """What one share earned on one model in a time range. Money is micro-USD."""

    share_id: str
    model: str
    """The pinned name that the users' requests have."""
    num_requests: int
    prompt_tokens: int
    completion_tokens: int
    surcharge: int
    """What the users paid."""
    owner_part: int
    """What of it the owner earned."""


_SUMS = ("num_requests", "prompt_tokens", "completion_tokens", "surcharge", "owner_part")


class EarningsRepository(TenantRepository):
    """Queries what one organization earned."""

    async def of(self, start: datetime, end: datetime) -> list[EarningLine]:
        """Returns lines of [start, end), whole UTC days, by share and model. Reversals count negative."""
        row = ShareEarning
        sums = (cast(func.sum(getattr(row, name)), BigInteger).label(name) for name in _SUMS)
        query = (
            self.select_own(row, row.share_id, row.model, *sums)
            .where(row.day >= start, row.day < end)
            .group_by(row.share_id, row.model)
            .order_by(row.share_id, row.model)
        )
        return [EarningLine(*found) for found in (await self.session.execute(query)).all()]


@dataclass(frozen=True, slots=True)
class ShareDifference:
    """A sum of an owner's day that differs from the users' rows, priced again."""

    owner_id: str
    day: datetime
    share_id: str
    model: str
    name: str
    expected: int
    found: int


# What users' rows say, priced again by their counts; reversals at their own time.
_EXPECTED = """
    SELECT owner_id, date_trunc('day', at, 'UTC') AS day, share_id, model,
           CAST(sum(surcharge) AS bigint) AS surcharge, CAST(sum(owner_part) AS bigint) AS owner_part
    FROM (
        SELECT owner_id, submitted_at AS at, share_id, model,
               usage_surcharge(prompt_tokens, completion_tokens, share_input_price, share_output_price)
                   AS surcharge,
               usage_owner_part(prompt_tokens, completion_tokens, share_input_price, share_output_price,
                                owner_percent) AS owner_part
        FROM usage_records
        WHERE submitted_at >= :start AND submitted_at < :end AND owner_id IS NOT NULL
        UNION ALL
        SELECT owner_id, at, share_id, model, -surcharge, -owner_part
        FROM reversals WHERE at >= :start AND at < :end AND owner_id IS NOT NULL
    ) AS rows GROUP BY 1, 2, 3, 4
"""
_DIFFERENCES = text(
    f"""
    WITH expected AS ({_EXPECTED}), found AS (
        SELECT tenant_id AS owner_id, day, share_id, model, surcharge, owner_part
        FROM share_earnings WHERE day >= :start AND day < :end
    )
    SELECT owner_id, day, share_id, model, f.name, f.expected, f.found
    FROM expected e FULL JOIN found USING (owner_id, day, share_id, model)
    CROSS JOIN LATERAL (VALUES
        ('surcharge', coalesce(e.surcharge, 0), coalesce(found.surcharge, 0)),
        ('owner''s part', coalesce(e.owner_part, 0), coalesce(found.owner_part, 0))
    ) AS f(name, expected, found)
    WHERE f.expected <> f.found ORDER BY 2, 1, 3, 4, 5
    """
)
_PRICED_AGAIN = text(
    f"SELECT model, CAST(sum(owner_part) AS bigint) AS owner_part FROM ({_EXPECTED}) AS days "
    "WHERE owner_id = :owner GROUP BY model"
)
_BY_OWNER = text(
    "SELECT tenant_id, CAST(sum(owner_part) AS bigint) AS owner_part FROM share_earnings "
    "WHERE day >= :start AND day < :end GROUP BY tenant_id"
)


class EarningsBook:
    """Queries all owners' earnings over [start, end), whole UTC days. Its session's scope is every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def differences(self, start: datetime, end: datetime) -> list[ShareDifference]:
        """Returns sums of owners that differ from the users' rows."""
        rows = await self.session.execute(_DIFFERENCES, {"start": start, "end": end})
        return [ShareDifference(*row) for row in rows.tuples()]

    async def priced_again(self, owner_id: str, start: datetime, end: datetime) -> dict[str, int]:
        """Returns the owner's micro-USD by model, from the users' rows."""
        values: dict[str, Any] = {"owner": owner_id, "start": start, "end": end}
        return {row.model: row.owner_part for row in await self.session.execute(_PRICED_AGAIN, values)}

    async def by_owner(self, start: datetime, end: datetime) -> dict[str, int]:
        """Returns micro-USD that each owner earned."""
        rows = await self.session.execute(_BY_OWNER, {"start": start, "end": end})
        return {row.tenant_id: row.owner_part for row in rows}
