"""Queries all tenants' hours and days beside the minutes that they are sums of."""

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
    """An hour or a day that differs from the sum of its minutes."""

    unit: str
    tenant_id: str
    service_tier: str
    start: datetime
    """The start of the hour or day."""
    differing: dict[str, tuple[Any, Any]]
    """(expected, found) of the sums and histograms that differ, by name; None where there is no row."""


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
    """Compares and corrects all tenants' hours and days. Its session's scope is every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def hold(self) -> None:
        """Locks hours and days against other writers until the transaction ends. The lock waits for writers
        that have begun; minutes of a writer that waits for it are not visible before its hours and days.
        """
        for statement in _HOLDS:
            await self.session.execute(statement)

    async def differences(self, start: datetime, end: datetime) -> list[RollupDifference]:
        """Returns every hour and day in [start, end), whole UTC days, that differs from its minutes. Each
        unit takes one statement, so a concurrent write is on both sides or on neither.
        """
        span, found = {"start": start, "end": end}, []
        for unit, statement in _COMPARISONS:
            rows = (await self.session.execute(statement, span)).mappings()
            found += [_difference(unit, row) for row in rows]
        return found

    async def derive(self, start: datetime, end: datetime) -> None:
        """Rebuilds the hours and days in [start, end) from their minutes. They must be held since the
        comparison.
        """
        for statement in _DERIVATIONS:
            await self.session.execute(statement, {"start": start, "end": end})


def _difference(unit: str, row: Any) -> RollupDifference:
    sides = {name: (row[f"expected_{name}"], row[f"found_{name}"]) for name in _MEASURES}
    differing = {name: (expected, found) for name, (expected, found) in sides.items() if expected != found}
    return RollupDifference(unit, row["tenant_id"], row["service_tier"], row["start"], differing)
