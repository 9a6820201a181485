"""Time ranges are split into whole days, hours and minutes that cover each minute exactly once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from db.rollup_intervals import UNITS, Unit, ceil, floor, intervals

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
WIDTHS: dict[str, timedelta] = {"minute": MINUTE, "hour": HOUR, "day": DAY}
START = datetime(2026, 4, 29, tzinfo=UTC)
"""The range ends in another month."""
NIGHT = START + timedelta(hours=44)

instants = st.builds(
    lambda minute, micros: START + minute * MINUTE + timedelta(microseconds=micros),
    st.one_of(st.integers(0, 4 * 1440), st.sampled_from((1439, 1440, 2880, 2881, 2940))),
    st.sampled_from((0, 0, 0, 1, 1_000_000, 59_999_999)),
)


def brute_force(start: datetime, end: datetime, coarsest: Unit) -> set[tuple[str, datetime]]:
    """The rows to read: each day whose minutes all begin in the range, then such hours, then what is left."""
    left = {n for n in range(5 * 1440) if start <= START + n * MINUTE < end}
    found = set()
    lengths: tuple[tuple[Unit, int], ...] = (("day", 1440), ("hour", 60), ("minute", 1))
    for unit, length in lengths:
        if UNITS.index(unit) <= UNITS.index(coarsest):
            for first in range(0, 5 * 1440, length):
                if left.issuperset(range(first, first + length)):
                    found.add((unit, START + first * MINUTE))
                    left.difference_update(range(first, first + length))
    return found


@given(instants, instants, st.sampled_from(UNITS))
@example(START, START, "day")
@example(START, START + DAY, "day")
@example(START, START + 3 * DAY, "day")
@example(START + MINUTE, START + 2 * DAY - MINUTE, "day")
@example(NIGHT, NIGHT + HOUR, "day")
@example(NIGHT + MINUTE, NIGHT + 2 * HOUR - MINUTE, "day")
def test_intervals_are_the_rows_that_brute_force_chooses(
    start: datetime, end: datetime, coarsest: Unit
) -> None:
    found = intervals(start, end, coarsest)
    rows = [
        (one.unit, one.start + n * WIDTHS[one.unit])
        for one in found
        for n in range((one.end - one.start) // WIDTHS[one.unit])
    ]
    assert len(rows) == len(set(rows))
    assert set(rows) == brute_force(start, end, coarsest)


@given(instants, instants, st.sampled_from(UNITS))
@example(START, START, "day")
@example(NIGHT, NIGHT + HOUR, "day")
@example(START, START + DAY, "day")
@example(START + MINUTE, START + 2 * DAY - MINUTE, "day")
@example(NIGHT + MINUTE, NIGHT + 2 * HOUR - MINUTE, "day")
@example(START, START + 3 * DAY, "day")
def test_intervals_cover_a_range_exactly_once(start: datetime, end: datetime, coarsest: Unit) -> None:
    found = intervals(start, end, coarsest)
    start, end = ceil(start, "minute"), ceil(end, "minute")
    if start >= end:
        assert found == []
        return
    assert (found[0].start, found[-1].end) == (start, end)
    assert all(one.end == following.start for one, following in pairwise(found))
    for one in found:
        assert one.start < one.end
        assert UNITS.index(one.unit) <= UNITS.index(coarsest)
        assert int(one.start.timestamp()) % WIDTHS[one.unit].total_seconds() == 0
        assert int(one.end.timestamp()) % WIDTHS[one.unit].total_seconds() == 0
    assert len(found) <= 2 * UNITS.index(coarsest) + 1, "each unit at most twice, the coarsest once"
    for unit, coarser in pairwise(UNITS[: UNITS.index(coarsest) + 1]):
        widths = [one.end - one.start for one in found if one.unit == unit]
        assert all(width < 2 * WIDTHS[coarser] for width in widths)
        if len(widths) == 2:
            assert max(widths) < WIDTHS[coarser]
    units = {one.unit for one in found}
    assert end - start < 2 * DAY or coarsest in units
    assert end - start < 2 * HOUR or coarsest == "minute" or units & {"hour", "day"}


def test_seconds_count_to_the_next_minute_at_both_ends() -> None:
    [one] = intervals(START + timedelta(seconds=1), START + timedelta(seconds=61))
    assert (one.unit, one.start, one.end) == ("minute", START + MINUTE, START + 2 * MINUTE)


def test_a_minute_that_begins_before_the_end_completes_its_day() -> None:
    [one] = intervals(START - timedelta(seconds=59), START + DAY - timedelta(seconds=1))
    assert (one.unit, one.start, one.end) == ("day", START, START + DAY)


@pytest.mark.parametrize("unit", UNITS)
@given(moment=instants)
def test_floor_and_ceil_are_the_neighbouring_starts(unit: Unit, moment: datetime) -> None:
    below, above = floor(moment, unit), ceil(moment, unit)
    assert below <= moment <= above
    assert above - below == (timedelta(0) if moment == below else WIDTHS[unit])
    assert int(below.timestamp()) % WIDTHS[unit].total_seconds() == 0
