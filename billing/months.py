"""Computes the UTC months and minutes that bills are divided by."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime

from billing.errors import InvalidBillingMonth

_MONTH = re.compile(r"(20[0-9]{2})-(0[1-9]|1[0-2])")


def parse(text: str) -> date:
    """Returns the first day of a month such as 2026-11. Raises InvalidBillingMonth."""
    found = _MONTH.fullmatch(text)
    if found is None:
        raise InvalidBillingMonth(f"month must be like 2026-11, not {text[:40]!r}")
    return date(int(found[1]), int(found[2]), 1)


def month_of(moment: datetime) -> date:
    """Returns the first day of the month that contains the moment."""
    moment = moment.astimezone(UTC)
    return date(moment.year, moment.month, 1)


def following(month: date) -> date:
    return date(month.year + month.month // 12, month.month % 12 + 1, 1)


def begin(month: date) -> datetime:
    """Returns the first moment of the month that contains the day."""
    return datetime(month.year, month.month, 1, tzinfo=UTC)


def span(day: date) -> tuple[datetime, datetime]:
    """Returns the first moments of the month that contains the day, and of the following month."""
    return begin(day), begin(following(day))


def between(first: date, end: date) -> Iterator[date]:
    """Yields the months from `first` up to but excluding `end`."""
    while first < end:
        yield first
        first = following(first)


def minute_of(moment: datetime) -> datetime:
    """Returns the start of the minute that contains the moment: usage is counted by minutes."""
    return moment.astimezone(UTC).replace(second=0, microsecond=0)
