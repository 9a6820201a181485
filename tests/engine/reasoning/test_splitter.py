"""Thinking and answer come out of a stream the same, however it is cut."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from engine.reasoning.splitter import Markers, Phase, ThinkingSplitter

THINK = Markers(b"<think>", b"</think>")
TEXTS = st.lists(
    st.sampled_from(["<think>", "</think>", "<", "</", "think", ">", "a", "\n", " ", "é", "<thi", "</thin"]),
    max_size=12,
).map("".join)


def split(
    pieces: Sequence[bytes], is_open: bool, is_exact: bool, markers: Markers = THINK
) -> tuple[bytes, bytes]:
    splitter = ThinkingSplitter(markers, is_open, is_exact)
    parts = [*(splitter.push(piece) for piece in pieces), splitter.finish()]
    return b"".join(part.thinking for part in parts), b"".join(part.answer for part in parts)


def expected(text: bytes, is_open: bool, is_exact: bool) -> tuple[bytes, bytes]:
    """The same from the whole text at once."""
    begun = text.lstrip()
    if not is_open:
        if not begun.startswith(THINK.start):
            return b"", text
        begun = begun[len(THINK.start) :]
    thinking, marker, answer = begun.partition(THINK.end)
    if not marker:
        return thinking.lstrip(), b""
    return thinking.strip(), answer if is_exact else answer.lstrip()


@given(TEXTS, st.lists(st.integers(0, 80)), st.booleans(), st.booleans())
@example("<think>a</think>\n\nb", [3, 9, 12], False, False)
@example("a </thin</think>b", [4, 5], True, True)
def test_any_cut_gives_the_same(text: str, cuts: list[int], is_open: bool, is_exact: bool) -> None:
    data = text.encode()
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[begin:end] for begin, end in itertools.pairwise(places)]
    assert split(pieces, is_open, is_exact) == expected(data, is_open, is_exact)


@given(TEXTS, st.booleans())
def test_text_is_shown_once_no_marker_can_hold_it_back(text: str, is_open: bool) -> None:
    splitter = ThinkingSplitter(THINK, is_open)
    splitter.push(text.encode())
    held = splitter.held.strip()
    assert not held or THINK.start.startswith(held) or THINK.end.startswith(held)


def test_a_marker_that_repeats_its_beginning_is_found() -> None:
    markers = Markers(b"[", b"aab")
    assert split([b"[xa", b"a", b"a", b"b", b"y"], False, False, markers) == (b"xa", b"y")


def test_the_phase_follows_the_markers() -> None:
    splitter = ThinkingSplitter(THINK, is_open=False)
    phases = []
    for piece in (b"\n<th", b"ink>", b"so</think", b">", b"then"):
        splitter.push(piece)
        phases.append(splitter.phase)
    assert phases == [Phase.UNDECIDED, *[Phase.THINKING] * 2, *[Phase.ANSWERING] * 2]
