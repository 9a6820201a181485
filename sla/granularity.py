"""The grains of what tenants were served like: minute, hour and UTC day; and how a stretch of time is made up
of them.

Owns that each minute counts once: what days cover whole is read from days, what is left at their edges from
hours and minutes. Refuses to know whose rows are read, and what is summed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import CompoundSelect, Select, Subquery, and_, bindparam, func, or_, union_all

from sla.models import SlaDay, SlaHour, SlaMinute

Row = type[SlaMinute] | type[SlaHour] | type[SlaDay]
Shares = list[dict[str, tuple[int, int]]]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Granularity:
    """The rows of one width."""

    unit: str
    """In the words of PostgreSQL's date_trunc, and the column that says when a row begins."""
    row: Row
    width: timedelta

    @property
    def table(self) -> str:
        return self.row.__tablename__

    @property
    def at(self) -> Any:
        """The column."""
        return getattr(self.row, self.unit)

    def begin(self, moment: datetime) -> datetime:
        """Of the row that the moment is in."""
        return moment - (moment - _EPOCH) % self.width


MINUTE = Granularity("minute", SlaMinute, timedelta(minutes=1))
HOUR = Granularity("hour", SlaHour, timedelta(hours=1))
DAY = Granularity("day", SlaDay, timedelta(days=1))
GRAINS = (MINUTE, HOUR, DAY)
ROLLUPS = (HOUR, DAY)
"""Sums of the minutes."""


_PLACES = (MINUTE, HOUR, DAY, HOUR, MINUTE)
"""A stretch is of as many pieces at most, in this order: statements over one are made once."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A stretch of time that one grain's rows make up whole."""

    grain: Granularity
    start: datetime
    end: datetime


def intervals(start: datetime, end: datetime) -> list[Interval]:
    """The rows that the minutes which begin in [start, end) are read from, each minute once."""
    return _cut(start, end, len(GRAINS) - 1)


def _cut(start: datetime, end: datetime, place: int) -> list[Interval]:
    if start >= end:
        return []
    grain = GRAINS[place]
    if grain is MINUTE:
        return [Interval(grain, start, end)]
    first, last = -((_EPOCH - start) // grain.width) * grain.width + _EPOCH, grain.begin(end)
    if first >= last:
        return _cut(start, end, place - 1)
    return [*_cut(start, first, place - 1), Interval(grain, first, last), *_cut(last, end, place - 1)]


def stretch(select_of: Callable[..., Select[Any]], names: Sequence[str]) -> Subquery:
    """These columns of the rows of a stretch, whose `bounds` the statement is run with. `select_of(row,
    *columns)` begins a query of the rows that count.
    """
    parts = [
        select_of(grain.row, *(getattr(grain.row, name) for name in names)).where(
            grain.at >= bindparam(f"from_{place}"), grain.at < bindparam(f"until_{place}")
        )
        for place, grain in enumerate(_PLACES)
    ]
    return union_all(*parts).subquery()


def bounds(start: datetime, end: datetime) -> dict[str, datetime]:
    """Of [start, end); pieces that it has not are empty."""
    return _named("", start, end)


def _named(prefix: str, start: datetime, end: datetime) -> dict[str, datetime]:
    spans, place = [(start, start)] * len(_PLACES), 0
    for piece in intervals(start, end):
        place = next(n for n in range(place, len(_PLACES)) if _PLACES[n] is piece.grain)
        spans[place] = (piece.start, piece.end)
        place += 1
    return {
        f"{prefix}{side}_{number}": moment
        for number, span in enumerate(spans)
        for side, moment in zip(("from", "until"), span, strict=True)
    }


@functools.cache
def shares_of(select_of: Callable[..., Select[Any]], num_stretches: int) -> CompoundSelect[Any]:
    """Rows (class, requests and failed of each stretch), several of a class, to be added up. Run with
    `share_bounds`. Only what lies in one of the stretches is read, once.
    """
    parts = []
    for grain in GRAINS:
        row, every, columns = grain.row, [], []
        for number in range(num_stretches):
            within = [
                and_(
                    grain.at >= bindparam(f"s{number}_from_{place}"),
                    grain.at < bindparam(f"s{number}_until_{place}"),
                )
                for place, one in enumerate(_PLACES)
                if one is grain
            ]
            every += within
            columns += [func.sum(counted).filter(or_(*within)) for counted in (row.requests, row.failed)]
        parts.append(select_of(row, row.service_tier, *columns).where(or_(*every)).group_by(row.service_tier))
    return union_all(*parts)


def share_bounds(since: Sequence[datetime], until: datetime) -> dict[str, datetime]:
    """Of the stretches from each of `since` up to `until`."""
    found: dict[str, datetime] = {}
    for number, start in enumerate(since):
        found |= _named(f"s{number}_", start, until)
    return found


def added(rows: Iterable[Any], num_stretches: int) -> Shares:
    """What the rows come to together: for each stretch by class (requests, failed)."""
    found: Shares = [{} for _ in range(num_stretches)]
    for tier, *numbers in rows:
        for place, stretch in enumerate(found):
            requests, failed = stretch.get(tier, (0, 0))
            of_row = (int(number or 0) for number in numbers[2 * place : 2 * place + 2])
            stretch[tier] = (requests + next(of_row), failed + next(of_row))
    return found
