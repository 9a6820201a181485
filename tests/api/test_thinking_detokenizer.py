"""Thinking and answer as texts: the same however the choice is cut into tokens and chunks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from api.thinking_detokenizer import ThinkingDetokenizer
from engine.protocol import Reasoning, TokenChunk, TokenLogprob
from engine.stops import StopMatcher
from engine.vocabulary import Vocabulary

PARTS = [b"<", b"/", b"think", b">", b"<think>", b"</think>", b"\n", b" ", b"a", b"b", b"\xc3", b"\xa9"]
VOCABULARY = Vocabulary([*PARTS, b""], frozenset(), False)
EOS = len(PARTS)
THINK = Reasoning("<think>", "</think>", (4,), (5,))
OPEN = Reasoning("<think>", "</think>", (4,), (5,), is_open=True)


def read(
    reasoning: Reasoning,
    token_ids: list[int],
    sizes: list[int],
    stops: tuple[str, ...] = (),
    stop: str | None = None,
) -> tuple[str, str, list[tuple[int, bytes]]]:
    detokenizer = ThinkingDetokenizer(VOCABULARY, reasoning, StopMatcher(stops) if stops else None)
    thinking, answer, scored = "", "", []
    rest = token_ids
    for size in [*sizes, len(token_ids)]:
        taken, rest = rest[:size], rest[size:]
        if not taken and rest:
            continue
        logprobs = [TokenLogprob(token_id, -1.0) for token_id in taken]
        is_last = not rest
        chunk = TokenChunk("r", 0, taken, logprobs, "stop" if is_last else None, stop if is_last else None)
        more, text = detokenizer.push(chunk)
        thinking += more
        answer += text
        scored += [(logprob.token_id, data) for logprob, data in detokenizer.take_scored()]
        if is_last:
            break
    return thinking, answer, scored


@given(st.lists(st.integers(0, EOS - 1), max_size=14), st.lists(st.integers(1, 3)), st.booleans())
def test_any_cut_into_chunks_gives_the_same(token_ids: list[int], sizes: list[int], is_open: bool) -> None:
    reasoning = OPEN if is_open else THINK
    whole = read(reasoning, [*token_ids, EOS], [])
    assert read(reasoning, [*token_ids, EOS], sizes) == whole
    thinking, answer, scored = whole
    shown = b"".join(data for _, data in scored)
    assert shown.decode(errors="replace") == answer
    assert "</think>" not in thinking


def test_each_token_is_shown_as_soon_as_it_is_certain() -> None:
    detokenizer = ThinkingDetokenizer(VOCABULARY, THINK, None)
    shown = [
        detokenizer.push(TokenChunk("r", 0, [token_id]))
        for token_id in (6, 0, 2, 3, 8, 9, 6, 0, 8, 5, 6, 6, 9, 8)
    ]
    assert shown == [
        *[("", "")] * 4,
        ("a", ""),
        ("b", ""),
        ("", ""),
        ("", ""),
        ("\n<a", ""),
        *[("", "")] * 3,
        ("", "b"),
        ("", "a"),
    ]


def test_a_stop_string_is_looked_for_in_the_answer_alone() -> None:
    thinking, answer, _ = read(OPEN, [8, 9, 5, 9, 9, 8, 9], [1] * 7, ("ab",), "ab")
    assert (thinking, answer) == ("ab", "bb")


def test_log_probabilities_are_the_answers() -> None:
    # <think> a </think> "\n" b
    assert read(THINK, [4, 8, 5, 6, 9, EOS], [1] * 6)[2] == [(9, b"b")]
    # "<" "a": what looked like a marker was the answer.
    assert read(THINK, [0, 8, EOS], [1] * 3)[2] == [(0, b"<"), (8, b"a")]
    # Only the beginning of a marker came.
    assert read(THINK, [6, 0, EOS], [1] * 3)[2] == [(6, b"\n"), (0, b"<")]


def test_half_a_character_ends_with_the_thinking() -> None:
    assert read(OPEN, [8, 10, 5, 9, EOS], [1] * 5)[:2] == ("a�", "b")
