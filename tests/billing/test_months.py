"""UTC months and minutes."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import pytest

from billing.errors import InvalidBillingMonth
from billing.months import between, following, minute_of, month_of, parse, span


def test_december_is_followed_by_january_of_the_next_year() -> None:
    assert following(date(2026, 12, 1)) == date(2027, 1, 1)
    assert following(date(2026, 11, 30)) == date(2026, 12, 1)
    assert span(date(2026, 12, 15)) == (datetime(2026, 12, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))


def test_months_from_one_up_to_another() -> None:
    found = list(between(date(2026, 11, 1), date(2027, 2, 1)))
    assert found == [date(2026, 11, 1), date(2026, 12, 1), date(2027, 1, 1)]
    assert list(between(date(2026, 11, 1), date(2026, 11, 1))) == []


@pytest.mark.parametrize(
    ("hours", "month"), [(0, date(2026, 12, 1)), (2, date(2026, 11, 1)), (-2, date(2026, 12, 1))]
)
def test_a_moment_is_in_the_month_that_it_is_in_utc(hours: int, month: date) -> None:
    zone = timezone(timedelta(hours=hours))
    assert month_of(datetime(2026, 12, 1, 1, tzinfo=zone)) == month


def test_a_minute_begins_at_its_first_microsecond_in_utc() -> None:
    zone = timezone(timedelta(hours=5, minutes=30))
    moment = datetime(2026, 12, 1, 5, 31, 59, 999_999, tzinfo=zone)
    assert minute_of(moment) == datetime(2026, 12, 1, 0, 1, tzinfo=UTC)
    assert minute_of(moment).tzinfo is UTC


@pytest.mark.parametrize("text", ["2026-13", "2026-00", "2026-1", "1999-12", "2026-11-01", ""])
def test_what_is_no_month_is_refused(text: str) -> None:
    with pytest.raises(InvalidBillingMonth):
        parse(text)


def test_a_month_is_read() -> None:
    assert parse("2026-11") == date(2026, 11, 1)
