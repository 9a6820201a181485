"""The grains of the ledger's sums: minute, hour and day; and how a stretch of time is made up of them.

Owns their keys and sums. Refuses to know rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

from billing.models import RollupSums, UsageRollup, UsageRollupDay, UsageRollupHour

Unit = Literal["minute", "hour", "day"]
"""In the words of PostgreSQL's date_trunc."""
UNITS: tuple[Unit, ...] = get_args(Unit)
ROLLUPS: dict[Unit, type[RollupSums]] = {
    "minute": UsageRollup,
    "hour": UsageRollupHour,
    "day": UsageRollupDay,
}
TABLES: dict[Unit, str] = {
    "minute": UsageRollup.__tablename__,
    "hour": UsageRollupHour.__tablename__,
    "day": UsageRollupDay.__tablename__,
}
_SECONDS: dict[Unit, int] = {"minute": 60, "hour": 3600, "day": 86_400}
KEYS = ("key_id", "model", "service_tier", "project_id", "user_id", "adapter_id")
"""What usage can be grouped by, beside its tenant and time."""
SUMS = (
    "num_requests", "prompt_tokens", "cached_tokens", "completion_tokens",
    "cost", "cached_cost", "output_cost",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Interval:
    """A stretch of time that one grain's rows make up whole."""

    unit: Unit
    start: datetime
    end: datetime


def intervals(start: datetime, end: datetime, coarsest: Unit) -> list[Interval]:
    """[start, end), both taken up to their minute, of as few rows as no coarser ones than `coarsest` allow:
    whole days from the days, and what is left at its edges from hours and minutes.
    """
    return [
        Interval(unit, _instant(first), _instant(last))
        for unit, first, last in _cut(_minute_up(start), _minute_up(end), coarsest)
    ]


def _cut(start: int, end: int, unit: Unit) -> list[tuple[Unit, int, int]]:
    if start >= end:
        return []
    if unit == "minute":
        return [(unit, start, end)]
    width, finer = _SECONDS[unit], UNITS[UNITS.index(unit) - 1]
    first, last = start + -start % width, end - end % width
    if first >= last:
        return _cut(start, end, finer)
    return [*_cut(start, first, finer), (unit, first, last), *_cut(last, end, finer)]


def _minute_up(moment: datetime) -> int:
    return -(-(moment - _EPOCH) // timedelta(minutes=1)) * 60


_EPOCH = datetime.fromtimestamp(0, UTC)


def _instant(seconds: int) -> datetime:
    return _EPOCH + timedelta(seconds=seconds)


def add_sql(unit: Unit, source: str) -> str:
    """An INSERT that adds `source`, rows of (tenant_id, at, *KEYS, *SUMS), to a grain's sums."""
    keys, sums = ", ".join(KEYS), ", ".join(f"sum({name})" for name in SUMS)
    return f"""
        INSERT INTO {TABLES[unit]} AS sums (tenant_id, {unit}, {keys}, {", ".join(SUMS)})
        SELECT tenant_id, date_trunc('{unit}', at, 'UTC'), {keys}, {sums}
        FROM {source} GROUP BY tenant_id, date_trunc('{unit}', at, 'UTC'), {keys}
        ON CONFLICT (tenant_id, {unit}, {keys}) DO UPDATE SET
            {", ".join(f"{name} = sums.{name} + excluded.{name}" for name in SUMS)}
    """
