"""Merging of event numbers: in any order, twice, over several workers; and the gaps that are left."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.event_numbers.ranges import Gap, NumberRange, gaps, is_possible, merged, ranges_of
from engine.protocol import EventNumber, IssuedEvents, UsageEvent
from tests.support.journal import usage_event

NOW = datetime(2026, 11, 20, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)


def numbered(tokens: list[int]) -> list[UsageEvent]:
    """Events of one incarnation, each with so many tokens of its own."""
    totals = [0, *accumulate(tokens)]
    return [
        usage_event(f"r{number}", number=EventNumber(number, totals[number - 1], totals[number]))
        for number in range(1, len(tokens) + 1)
    ]


@given(st.lists(st.integers(0, 300), min_size=1, max_size=30), st.data())
def test_what_came_in_and_what_is_missing_is_all_there_is(tokens: list[int], data: st.DataObject) -> None:
    events = numbered(tokens)
    came = data.draw(st.lists(st.sampled_from(range(len(events))), max_size=60))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(came)), max_size=4)))
    batches = [came[a:b] for a, b in zip([0, *cuts], [*cuts, len(came)], strict=True)]
    ranges: list[NumberRange] = []
    for batch in batches:
        found = ranges_of([events[number] for number in batch], NOW)
        ranges = merged([*ranges, *found.get(("engine-0", "one"), [])])
    assert {n for one in ranges for n in range(one.first, one.last + 1)} == {one + 1 for one in came}
    assert all(a.last + 1 < b.first for a, b in pairwise(ranges))
    missing = gaps(ranges, len(events), sum(tokens), NOW)
    numbers = [n for gap in missing for n in range(gap.first, gap.last + 1)]
    assert numbers == [n for n in range(1, len(events) + 1) if n - 1 not in came]
    assert sum(gap.tokens for gap in missing) == sum(tokens[n - 1] for n in numbers)


def test_a_gap_is_known_since_what_is_behind_it_came_in() -> None:
    ranges = merged(
        [NumberRange(8, 9, 70, 90, LATER), NumberRange(1, 3, 0, 30, NOW), NumberRange(4, 4, 30, 44, LATER)]
    )
    assert ranges == [NumberRange(1, 4, 0, 44, NOW), NumberRange(8, 9, 70, 90, LATER)]
    assert gaps(ranges) == [Gap(5, 7, 26, LATER)]
    assert gaps(ranges, 12, 100, NOW) == [Gap(5, 7, 26, LATER), Gap(10, 12, 10, NOW)]
    assert gaps([], 2, 17, NOW) == [Gap(1, 2, 17, NOW)]
    assert Gap(5, 7, 26, LATER).num_events == 3


@pytest.mark.parametrize(
    "number",
    [None, EventNumber(0, 0, 1), EventNumber(-3, 0, 1), EventNumber(2**60, 0, 1), EventNumber(3, 9, 4)],
)
def test_numbers_that_make_no_sense_are_left_out(number: EventNumber | None) -> None:
    assert ranges_of([usage_event(number=number)], NOW) == {}


def test_an_engine_without_a_name_has_no_numbers() -> None:
    one = EventNumber(1, 0, 1)
    assert ranges_of([usage_event(number=one, engine_id="")], NOW) == {}
    assert ranges_of([usage_event(number=one, incarnation="x\x00")], NOW) == {}
    assert not is_possible(IssuedEvents("e", "i", 0, 0, 1.0))
    assert not is_possible(IssuedEvents("e", "", 1, 0, 1.0))
    assert is_possible(IssuedEvents("e", "i", 1, 0, 1.0))
