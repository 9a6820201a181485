"""Stop strings are found at the same place however the stream is cut, and held back as long as needed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.stops import StopMatch, StopMatcher

ALPHABET = "abñ€"
stop_lists = st.lists(st.text(ALPHABET, min_size=1, max_size=4), min_size=1, max_size=4)


def first_match(stops: list[str], data: bytes) -> StopMatch | None:
    """By definition: the earliest end, and of those the earliest start."""
    for end in range(1, len(data) + 1):
        ending = [stop for stop in stops if data[:end].endswith(stop.encode())]
        if ending:
            longest = max(ending, key=lambda stop: len(stop.encode()))
            return StopMatch(longest, end - len(longest.encode()))
    return None


def longest_beginning(stops: list[str], data: bytes) -> int:
    prefixes = [stop.encode()[:size] for stop in stops for size in range(1, len(stop.encode()) + 1)]
    return max((len(prefix) for prefix in prefixes if data.endswith(prefix)), default=0)


@given(stop_lists, st.text(ALPHABET, max_size=30), st.data())
def test_cutting_the_stream_changes_nothing(stops: list[str], text: str, data: st.DataObject) -> None:
    stream = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    matcher = StopMatcher(stops)
    found = None
    position = 0
    for cut in [*cuts, len(stream)]:
        match = matcher.push(stream[position:cut])
        found = found or match
        position = cut
        assert matcher.held == longest_beginning(stops, stream[:position])
    assert found == first_match(stops, stream)


@given(stop_lists, st.lists(st.text(ALPHABET, max_size=6), max_size=6))
def test_reading_goes_on_after_a_match(stops: list[str], parts: list[str]) -> None:
    matcher = StopMatcher(stops)
    read = b""
    for part in parts:
        found = matcher.push(part.encode())
        ends = [
            end
            for end in range(len(read) + 1, len(read + part.encode()) + 1)
            if any((read + part.encode())[:end].endswith(stop.encode()) for stop in stops)
        ]
        read += part.encode()
        assert (found is None) == (not ends)
        if found is not None:
            assert found.start + len(found.stop.encode()) == ends[0]


def test_a_stop_across_tokens_is_found_where_it_begins() -> None:
    matcher = StopMatcher(["###"])
    assert matcher.push(b"answer #") is None
    assert matcher.held == 1
    assert matcher.push(b"# ") is None
    assert matcher.held == 0
    assert matcher.push(b"##") is None
    assert matcher.held == 2
    assert matcher.push(b"#!") == StopMatch("###", 10)


def test_a_character_split_between_tokens_still_matches() -> None:
    euro = "€".encode()
    matcher = StopMatcher(["€"])
    assert matcher.push(b"1 " + euro[:1]) is None
    assert matcher.held == 1
    assert matcher.push(euro[1:]) == StopMatch("€", 2)


def test_a_fresh_twin_starts_at_its_own_beginning() -> None:
    matcher = StopMatcher(["ab"])
    matcher.push(b"xxa")
    twin = matcher.fresh()
    assert twin.held == 0
    assert twin.push(b"b") is None
    assert twin.push(b"ab") == StopMatch("ab", 1)
    assert matcher.push(b"b") == StopMatch("ab", 2)


def test_no_stops_match_nothing_and_hold_nothing() -> None:
    matcher = StopMatcher([])
    assert matcher.push(b"anything") is None
    assert matcher.held == 0


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="stop string"):
        StopMatcher(["a", ""])
