"""Queries on the hours and days of service levels beside the minutes they are sums of, of all tenants."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from sla.granularity import ROLLUPS, Granularity
from sla.repository import HISTOGRAMS, SUMMED, SUMS

_MEASURES = (*SUMS, *HISTOGRAMS)


@dataclass(frozen=True, slots=True)
class RollupDifference:
    """An hour or a day that is not what its minutes come to."""

    unit: str
    tenant_id: str
    service_tier: str
    start: datetime
    """Of its hour or day."""
    differing: dict[str, tuple[Any, Any]]
    """By the names of sums and histograms, (expected, found) of those that differ; None where there is no
    row.
    """


def _derived(granularity: Granularity) -> str:
    return f"""
        SELECT tenant_id, service_tier, date_trunc('{granularity.unit}', minute, 'UTC') AS {granularity.unit},
               {", ".join(f"CAST(sum({name}) AS bigint) AS {name}" for name in SUMS)},
               {", ".join(f"{expression} AS {name}" for name, expression in SUMMED.items())}
        FROM sla_minutes WHERE minute >= :start AND minute < :end GROUP BY 1, 2, 3
    """


def _comparison(granularity: Granularity) -> str:
    expected, found = (", ".join(f"{side}.{name}" for name in _MEASURES) for side in "ef")
    return f"""
        WITH expected AS ({_derived(granularity)}), found AS (
            SELECT * FROM {granularity.table} WHERE {granularity.unit} >= :start AND {granularity.unit} < :end
        )
        SELECT tenant_id, service_tier, {granularity.unit} AS start,
               {", ".join(f"e.{name} AS expected_{name}, f.{name} AS found_{name}" for name in _MEASURES)}
        FROM expected e FULL JOIN found f USING (tenant_id, service_tier, {granularity.unit})
        WHERE ({expected}) IS DISTINCT FROM ({found})
        ORDER BY 1, 2, 3
    """


def _derivation(granularity: Granularity) -> str:
    columns = f"tenant_id, service_tier, {granularity.unit}, {', '.join(_MEASURES)}"
    return f"INSERT INTO {granularity.table} ({columns}) {_derived(granularity)}"


_COMPARISONS = [(granularity.unit, text(_comparison(granularity))) for granularity in ROLLUPS]
_DERIVATIONS = [
    text(statement)
    for granularity in ROLLUPS
    for statement in (
        f"DELETE FROM {granularity.table} WHERE {granularity.unit} >= :start AND {granularity.unit} < :end",
        _derivation(granularity),
    )
]
_HOLDS = [text(f"LOCK TABLE {granularity.table} IN SHARE ROW EXCLUSIVE MODE") for granularity in ROLLUPS]


class RollupBooks:
    """All tenants' hours and days beside their minutes. Its session's scope is every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def hold(self) -> None:
        """Let nobody else write hours and days until the transaction ends. Whoever has begun to is waited
        for; whoever has written their minutes alone is seen by nobody before all of it is there.
        """
        for statement in _HOLDS:
            await self.session.execute(statement)

    async def differences(self, start: datetime, end: datetime) -> list[RollupDifference]:
        """Every hour and day in [start, end), whole UTC days, that is not what its minutes come to. One
        statement for each: what is written meanwhile is in both or in neither.
        """
        span, found = {"start": start, "end": end}, []
        for unit, statement in _COMPARISONS:
            rows = (await self.session.execute(statement, span)).mappings()
            found += [_difference(unit, row) for row in rows]
        return found

    async def derive(self, start: datetime, end: datetime) -> None:
        """Make the hours and days in [start, end) what their minutes come to. Hold them since they were
        compared.
        """
        for statement in _DERIVATIONS:
            await self.session.execute(statement, {"start": start, "end": end})


def _difference(unit: str, row: Any) -> RollupDifference:
    sides = {name: (row[f"expected_{name}"], row[f"found_{name}"]) for name in _MEASURES}
    differing = {name: (expected, found) for name, (expected, found) in sides.items() if expected != found}
    return RollupDifference(unit, row["tenant_id"], row["service_tier"], row["start"], differing)
