"""Queries on the hours of service levels beside the minutes they are sums of, of all tenants."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from sla.repository import HISTOGRAMS, SUMMED, SUMS

_MEASURES = (*SUMS, *HISTOGRAMS)
_NAMES = ", ".join(_MEASURES)
_DERIVED = f"""
    SELECT tenant_id, service_tier, date_trunc('hour', minute, 'UTC') AS hour,
           {", ".join(f"CAST(sum({name}) AS bigint) AS {name}" for name in SUMS)},
           {", ".join(f"{expression} AS {name}" for name, expression in SUMMED.items())}
    FROM sla_minutes WHERE minute >= :start AND minute < :end GROUP BY 1, 2, 3
"""
_DIFFERENCES = text(f"""
    WITH expected AS ({_DERIVED}), found AS (
        SELECT * FROM sla_hours WHERE hour >= :start AND hour < :end
    )
    SELECT tenant_id, service_tier, hour, {", ".join(f"e.{name} AS expected_{name}" for name in _MEASURES)},
           {", ".join(f"f.{name} AS found_{name}" for name in _MEASURES)}
    FROM expected e FULL JOIN found f USING (tenant_id, service_tier, hour)
    WHERE ({", ".join(f"e.{name}" for name in _MEASURES)})
          IS DISTINCT FROM ({", ".join(f"f.{name}" for name in _MEASURES)})
    ORDER BY 1, 2, 3
""")
_FORGET = text("DELETE FROM sla_hours WHERE hour >= :start AND hour < :end")
_DERIVE = text(f"INSERT INTO sla_hours (tenant_id, service_tier, hour, {_NAMES}) {_DERIVED}")
_HOLD = text("LOCK TABLE sla_hours IN SHARE ROW EXCLUSIVE MODE")


@dataclass(frozen=True, slots=True)
class HourDifference:
    """A row of an hour that is not what its minutes come to."""

    tenant_id: str
    service_tier: str
    hour: datetime
    differing: dict[str, tuple[Any, Any]]
    """By the names of sums and histograms, (expected, found) of those that differ; None where there is no
    row.
    """


class HourBooks:
    """All tenants' hours beside their minutes. Its session's scope is every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def hold(self) -> None:
        """Let nobody else write hours until the transaction ends. Whoever has begun to is waited for; whoever
        has written their minutes, and no hour yet, is seen by nobody before both are there.
        """
        await self.session.execute(_HOLD)

    async def differences(self, start: datetime, end: datetime) -> list[HourDifference]:
        """Every hour in [start, end), whole hours, that is not what its minutes come to. One statement: what
        is written meanwhile is in both or in neither.
        """
        rows = (await self.session.execute(_DIFFERENCES, {"start": start, "end": end})).mappings()
        return [_difference(row) for row in rows]

    async def derive(self, start: datetime, end: datetime) -> None:
        """Make the hours in [start, end) what their minutes come to. Hold them since they were compared."""
        span = {"start": start, "end": end}
        await self.session.execute(_FORGET, span)
        await self.session.execute(_DERIVE, span)


def _difference(row: Any) -> HourDifference:
    sides = {name: (row[f"expected_{name}"], row[f"found_{name}"]) for name in _MEASURES}
    differing = {name: (expected, found) for name, (expected, found) in sides.items() if expected != found}
    return HourDifference(row["tenant_id"], row["service_tier"], row["hour"], differing)
