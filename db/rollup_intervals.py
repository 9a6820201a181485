"""Splits a time range into the whole UTC days, hours and minutes whose rollup rows cover it exactly once.

The rollups of the ledger and of service levels are kept by minute, hour and day. A query over a range reads
whole days from the day rows, and only what is left at the edges from the hour and minute rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

Unit = Literal["minute", "hour", "day"]
"""Named as PostgreSQL's `date_trunc` names it, and as the column that holds the start of a rollup row."""
UNITS: tuple[Unit, ...] = get_args(Unit)
"""The finest first."""
_WIDTHS: dict[Unit, timedelta] = {
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Interval:
    """The time range [start, end), made of whole rows of one unit."""

    unit: Unit
    start: datetime
    end: datetime


def floor(moment: datetime, unit: Unit) -> datetime:
    """Returns the start of the minute, hour or UTC day that contains the moment."""
    return moment - (moment - _EPOCH) % _WIDTHS[unit]


def ceil(moment: datetime, unit: Unit) -> datetime:
    """Returns the first start of a minute, hour or UTC day that is not before the moment."""
    return moment + (_EPOCH - moment) % _WIDTHS[unit]


def intervals(start: datetime, end: datetime, coarsest: Unit = "day") -> list[Interval]:
    """Returns the fewest rows that cover each minute that begins in [start, end) exactly once, in order.

    No interval has a unit coarser than `coarsest`. There are at most two intervals of each finer unit and one
    of the coarsest, so that a statement over a range has at most five parts.
    """
    return _split(ceil(start, "minute"), ceil(end, "minute"), coarsest)


def _split(start: datetime, end: datetime, unit: Unit) -> list[Interval]:
    if start >= end:
        return []
    if unit == "minute":
        return [Interval(unit, start, end)]
    finer = UNITS[UNITS.index(unit) - 1]
    first, last = ceil(start, unit), floor(end, unit)
    if first >= last:
        return _split(start, end, finer)
    return [*_split(start, first, finer), Interval(unit, first, last), *_split(last, end, finer)]
