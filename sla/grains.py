"""The grains of what tenants were served like, minute and hour, and how a stretch of time is made up of them.

Owns that each minute counts once: what hours cover whole is read from hours, and the edges from minutes.
Refuses to know whose rows are read, and what is summed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, literal, or_

from sla.models import SlaHour, SlaMinute

_HOUR = timedelta(hours=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Row = type[SlaMinute] | type[SlaHour]
GRAINS: tuple[Row, ...] = (SlaMinute, SlaHour)
Shares = list[dict[str, tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of time that one grain's rows make up whole."""

    row: Row
    start: datetime
    end: datetime

    @property
    def covers(self) -> ColumnElement[bool]:
        """Whether a row is of it."""
        at = begin_of(self.row)
        return and_(at >= self.start, at < self.end)


def begin_of(row: Row) -> Any:
    """The column that says when a row's minute or hour begins."""
    return row.hour if issubclass(row, SlaHour) else row.minute


def pieces(start: datetime, end: datetime) -> list[Piece]:
    """The minutes and hours that begin in [start, end), each minute once: in the middle as hours."""
    first, last = start + (_EPOCH - start) % _HOUR, end - (end - _EPOCH) % _HOUR
    if first >= last:
        found = [Piece(SlaMinute, start, end)]
    else:
        found = [Piece(SlaMinute, start, first), Piece(SlaHour, first, last), Piece(SlaMinute, last, end)]
    return [piece for piece in found if piece.start < piece.end]


def share_queries(
    since: Sequence[datetime], until: datetime, select_of: Callable[..., Select[Any]]
) -> list[Select[Any]]:
    """Of each grain that is needed, by class: requests and failed of each stretch from one of `since` up to
    `until`. `select_of(row, *columns)` begins a query of the rows that count.
    """
    stretches = [pieces(start, until) for start in since]
    found = []
    for row in GRAINS:
        of_row = [[piece.covers for piece in stretch if piece.row is row] for stretch in stretches]
        every = [covers for stretch in of_row for covers in stretch]
        if not every:
            continue
        columns = [
            func.coalesce(func.sum(counted).filter(or_(*stretch)), 0) if stretch else literal(0)
            for stretch in of_row
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
