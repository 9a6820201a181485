"""Text from tokens: nothing shown too early, nothing lost, nothing past a stop."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from api.detokenizer import Detokenizer
from engine.protocol import TokenChunk
from engine.stops import StopMatcher
from engine.vocabulary import Vocabulary
from tests.support.examples import examples

BYTES = Vocabulary([bytes([value]) for value in range(256)] + [b""], frozenset({256}), False)
"""Token n is byte n; 256 is special."""
EOS = 256


def chunk(
    data: bytes, finish: str | None = None, stop: str | int | None = None, extra: list[int] | None = None
):
    return TokenChunk("r", 0, [*data, *(extra or [])], None, finish, stop)


def test_a_character_is_shown_when_it_is_complete() -> None:
    detokenizer = Detokenizer(BYTES)
    shown = [detokenizer.push(chunk(bytes([byte]))) for byte in "é🙂".encode()]
    assert shown == ["", "é", "", "", "", "🙂"]


def test_a_broken_tail_becomes_a_replacement_character_at_the_end_only() -> None:
    detokenizer = Detokenizer(BYTES)
    assert detokenizer.push(chunk("a🙂".encode()[:-1])) == "a"
    assert detokenizer.push(chunk(b"", "length")) == "�"


def test_an_end_of_sequence_and_a_stop_token_are_not_text() -> None:
    assert Detokenizer(BYTES).push(chunk(b"ab", "stop", extra=[EOS])) == "ab"
    assert Detokenizer(BYTES).push(chunk(b"abX", "stop", ord("X"))) == "ab"
    assert Detokenizer(BYTES).push(chunk(b"abX", "length")) == "abX"


def test_ids_past_the_tokenizer_have_no_text() -> None:
    for past in (257, 9999):
        assert Detokenizer(BYTES).push(chunk(b"a", "length", extra=[past])) == "a"


def test_what_may_begin_a_stop_is_held_and_given_out_when_it_does_not() -> None:
    detokenizer = Detokenizer(BYTES, StopMatcher(["STOP"]))
    assert detokenizer.push(chunk(b"go ST")) == "go "
    assert detokenizer.push(chunk(b"AY ")) == "STAY "
    assert detokenizer.push(chunk(b"STO")) == ""
    assert detokenizer.push(chunk(b"", "length")) == "STO"


def test_a_stop_is_obeyed_only_where_the_engine_stopped() -> None:
    """With min_tokens the engine reads past stop strings; so must the text."""
    detokenizer = Detokenizer(BYTES, StopMatcher(["STOP"]))
    text = detokenizer.push(chunk(b"a STOP b"))
    text += detokenizer.push(chunk(b" STOP", "stop", "STOP"))
    assert text == "a STOP b "


def test_the_leading_space_of_a_sentencepiece_answer_goes() -> None:
    detokenizer = Detokenizer(BYTES, None, strip_leading_space=True)
    assert detokenizer.push(chunk(b" Hello")) + detokenizer.push(chunk(b" world", "length")) == "Hello world"


@settings(max_examples=examples(200), deadline=None)
@given(
    text=st.text(alphabet="abST🙂é ", max_size=40),
    stops=st.lists(st.sampled_from(["ST", "ab🙂", "é ", "aba", "🙂🙂"]), max_size=3, unique=True),
    cuts=st.lists(st.integers(1, 7), min_size=1, max_size=30),
)
def test_any_cut_into_tokens_shows_the_text_up_to_the_first_stop(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    """Against the definition: the text before the stop that ends first, of those the longest."""
    data = text.encode()
    ends = [
        (end, position, stop)
        for stop in stops
        for position in range(len(data))
        if data[position:].startswith(stop.encode())
        for end in [position + len(stop.encode())]
    ]
    end, begin, stop = min(ends, default=(len(data), len(data), None))
    read = data[:end]
    detokenizer = Detokenizer(BYTES, StopMatcher(stops) if stops else None)
    shown = ""
    position, step = 0, 0
    while True:
        # The engine sends a token at a time: the last chunk ends with the byte that completes the stop.
        size = cuts[step % len(cuts)]
        part = read[position : position + size]
        position, step = position + size, step + 1
        last = position >= len(read)
        finish = ("stop" if stop else "length") if last else None
        shown += detokenizer.push(chunk(part, finish, stop if last else None))
        assert data[:begin].decode(errors="ignore").startswith(shown.rstrip("�"))
        if last:
            break
    assert shown == data[:begin].decode()
