"""The grains of what tenants were served like: minute, hour and UTC day; and how a stretch of time is made up
of them.

Owns that each minute counts once: what days cover whole is read from days, what is left at their edges from
hours and minutes. Refuses to know whose rows are read, and what is summed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, literal, or_

from sla.models import SlaDay, SlaHour, SlaMinute

Row = type[SlaMinute] | type[SlaHour] | type[SlaDay]
Shares = list[dict[str, tuple[int, int]]]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Grain:
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


MINUTE = Grain("minute", SlaMinute, timedelta(minutes=1))
HOUR = Grain("hour", SlaHour, timedelta(hours=1))
DAY = Grain("day", SlaDay, timedelta(days=1))
GRAINS = (MINUTE, HOUR, DAY)
ROLLUPS = (HOUR, DAY)
"""Sums of the minutes."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of time that one grain's rows make up whole."""

    grain: Grain
    start: datetime
    end: datetime

    @property
    def covers(self) -> ColumnElement[bool]:
        """Whether a row is of it."""
        return and_(self.grain.at >= self.start, self.grain.at < self.end)


def pieces(start: datetime, end: datetime) -> list[Piece]:
    """The rows that the minutes which begin in [start, end) are read from, each minute once."""
    return _cut(start, end, len(GRAINS) - 1)


def _cut(start: datetime, end: datetime, place: int) -> list[Piece]:
    if start >= end:
        return []
    grain = GRAINS[place]
    if grain is MINUTE:
        return [Piece(grain, start, end)]
    first, last = -((_EPOCH - start) // grain.width) * grain.width + _EPOCH, grain.begin(end)
    if first >= last:
        return _cut(start, end, place - 1)
    return [*_cut(start, first, place - 1), Piece(grain, first, last), *_cut(last, end, place - 1)]


def share_queries(
    since: Sequence[datetime], until: datetime, select_of: Callable[..., Select[Any]]
) -> list[Select[Any]]:
    """Of each grain that is needed, by class: requests and failed of each stretch from one of `since` up to
    `until`. `select_of(row, *columns)` begins a query of the rows that count.
    """
    stretches = [pieces(start, until) for start in since]
    found = []
    for grain in GRAINS:
        of_grain = [[piece.covers for piece in stretch if piece.grain is grain] for stretch in stretches]
        every = [covers for stretch in of_grain for covers in stretch]
        if not every:
            continue
        row = grain.row
        columns = [
            func.coalesce(func.sum(counted).filter(or_(*stretch)), 0) if stretch else literal(0)
            for stretch in of_grain
            for counted in (row.requests, row.failed)
        ]
        query = select_of(row, row.service_tier, *columns)
        found.append(query.where(or_(*every)).group_by(row.service_tier))
    return found


def add_shares(answers: Sequence[Sequence[Any]], num_stretches: int) -> Shares:
    """What the queries' rows come to together: for each stretch by class (requests, failed)."""
    found: Shares = [{} for _ in range(num_stretches)]
    for rows in answers:
        for tier, *numbers in rows:
            for place, stretch in enumerate(found):
                requests, failed = stretch.get(tier, (0, 0))
                stretch[tier] = (requests + int(numbers[2 * place]), failed + int(numbers[2 * place + 1]))
    return found
