"""Builds the statements that read service-level rows by minute, hour and UTC day.

Each minute counts once: `db.rollup_intervals` splits a time range into intervals of whole days, hours and
minutes, and the statements here add up the rows of those intervals.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import CompoundSelect, Select, Subquery, and_, bindparam, func, or_, union_all

from db.rollup_intervals import Unit, floor, intervals
from sla.models import SlaDay, SlaHour, SlaMinute

Row = type[SlaMinute] | type[SlaHour] | type[SlaDay]
Shares = list[dict[str, tuple[int, int]]]
"""For each time range, by service tier: (requests, failed)."""


@dataclass(frozen=True, slots=True)
class Granularity:
    """The table of one unit."""

    unit: Unit
    """Also the name of the column that holds the start of a row."""
    row: Row

    @property
    def table(self) -> str:
        return self.row.__tablename__

    @property
    def at(self) -> Any:
        """The column that holds the start of a row."""
        return getattr(self.row, self.unit)

    def floor(self, moment: datetime) -> datetime:
        """Returns the start of the row that contains the moment."""
        return floor(moment, self.unit)


MINUTE = Granularity("minute", SlaMinute)
HOUR = Granularity("hour", SlaHour)
DAY = Granularity("day", SlaDay)
GRANULARITIES = (MINUTE, HOUR, DAY)
ROLLUPS = (HOUR, DAY)
"""The tables that hold sums of minutes."""

_PARTS = (MINUTE, HOUR, DAY, HOUR, MINUTE)
"""The intervals of any time range, in order: some are empty. A statement has a part for each, so that it is
built once.
"""


def select_range(select_of: Callable[..., Select[Any]], names: Sequence[str]) -> Subquery:
    """Returns these columns of the rows of a time range. Run the statement with `range_bounds`.

    `select_of(row, *columns)` begins a query of the rows that count.
    """
    parts = [
        select_of(granularity.row, *(getattr(granularity.row, name) for name in names)).where(
            granularity.at >= bindparam(f"from_{number}"), granularity.at < bindparam(f"until_{number}")
        )
        for number, granularity in enumerate(_PARTS)
    ]
    return union_all(*parts).subquery()


def range_bounds(start: datetime, end: datetime) -> dict[str, datetime]:
    """Returns the parameters of `select_range` for the minutes that begin in [start, end)."""
    return _bounds("", start, end)


def _bounds(prefix: str, start: datetime, end: datetime) -> dict[str, datetime]:
    spans, number = [(start, start)] * len(_PARTS), 0
    for interval in intervals(start, end):
        number = next(n for n in range(number, len(_PARTS)) if _PARTS[n].unit == interval.unit)
        spans[number] = (interval.start, interval.end)
        number += 1
    return {
        f"{prefix}{side}_{number}": moment
        for number, span in enumerate(spans)
        for side, moment in zip(("from", "until"), span, strict=True)
    }


@functools.cache
def select_shares(select_of: Callable[..., Select[Any]], num_ranges: int) -> CompoundSelect[Any]:
    """Returns a statement over several time ranges whose rows are (service tier, then requests and failed of
    each range). Run it with `share_bounds`, and add up its rows with `add_shares`: a tier has several.

    Only rows that lie in one of the ranges are read, each once.
    """
    parts = []
    for granularity in GRANULARITIES:
        row, every, columns = granularity.row, [], []
        for range_number in range(num_ranges):
            within = [
                and_(
                    granularity.at >= bindparam(f"s{range_number}_from_{number}"),
                    granularity.at < bindparam(f"s{range_number}_until_{number}"),
                )
                for number, part in enumerate(_PARTS)
                if part is granularity
            ]
            every += within
            columns += [func.sum(counted).filter(or_(*within)) for counted in (row.requests, row.failed)]
        parts.append(select_of(row, row.service_tier, *columns).where(or_(*every)).group_by(row.service_tier))
    return union_all(*parts)


def share_bounds(starts: Sequence[datetime], end: datetime) -> dict[str, datetime]:
    """Returns the parameters of `select_shares` for the time ranges from each of `starts` to `end`."""
    found: dict[str, datetime] = {}
    for number, start in enumerate(starts):
        found |= _bounds(f"s{number}_", start, end)
    return found


def add_shares(rows: Iterable[Any], num_ranges: int) -> Shares:
    """Returns the sums of the rows that `select_shares` returned."""
    found: Shares = [{} for _ in range(num_ranges)]
    for tier, *numbers in rows:
        for place, shares in enumerate(found):
            requests, failed = shares.get(tier, (0, 0))
            of_row = (int(number or 0) for number in numbers[2 * place : 2 * place + 2])
            shares[tier] = (requests + next(of_row), failed + next(of_row))
    return found
