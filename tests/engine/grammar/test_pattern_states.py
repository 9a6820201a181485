"""Expressions that are followed by their states: as `re` understands them, or not at all."""

from __future__ import annotations

import re
from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.grammar.exact_schemas import PATTERNS
from engine.grammar.pattern_states import DEAD, Pattern, UnsupportedPattern

MOST = 5
TEXTS = ["".join(text) for length in range(MOST + 1) for text in product("ab-", repeat=length)]

_atoms = st.sampled_from(("a", "b", "[ab]", "[a-b-]", r"\-", "ab", "(?:ba|a)"))
_counts = st.sampled_from(("", "", "*", "+", "?", "{2}", "{1,3}", "{2,}", "{0,1}"))
_repeated = st.tuples(_atoms, _counts).map(lambda parts: f"({parts[0]}){parts[1]}")
_sequences = st.lists(_repeated, min_size=1, max_size=3).map("".join)
_whole = st.lists(_sequences, min_size=1, max_size=2).map(lambda found: f"^({'|'.join(found)})$") | st.tuples(
    _sequences, _counts
).map(lambda parts: f"^({parts[0]}){parts[1]}$")


def _after(pattern: Pattern, text: str) -> int:
    state = 0
    for character in text:
        state = pattern.step(state, ord(character))
        if state == DEAD:
            break
    return state


@settings(max_examples=60, deadline=None)
@given(_whole, st.integers(0, MOST))
def test_states_are_what_can_follow(source: str, most: int) -> None:
    """In texts of at most so many characters; the end counts as one."""
    pattern, compiled = Pattern(source), re.compile(source)
    matching = {text for text in TEXTS if compiled.fullmatch(text) and len(text) <= most}
    for text in TEXTS[: len(TEXTS) // 9]:
        following = {one[len(text) :][:1] for one in matching if one.startswith(text)}
        if following:
            assert pattern.num_choices(_after(pattern, text), most - len(text)) == len(following)


@settings(max_examples=60, deadline=None)
@given(_whole)
def test_texts_in_one_state_go_on_alike(source: str) -> None:
    pattern, compiled = Pattern(source), re.compile(source)
    begun = [text for text in TEXTS if len(text) <= 3]
    endings = [text for text in TEXTS if len(text) <= 2]
    found: dict[int, tuple[bool, ...]] = {}
    for text in begun:
        state = _after(pattern, text)
        ends = tuple(compiled.fullmatch(text + ending) is not None for ending in endings)
        assert not (state == DEAD and any(ends))
        assert found.setdefault(state, ends) == ends


@pytest.mark.parametrize(
    "source",
    [
        *("a", "^a", "a$", "^a|b$", "^.$", "^[^a]$", r"^\w$", r"^\bA$", "^a*?$", "^é$", "^[é]$", "^(?i:a)$"),
        *(
            '^"$',
            r"^\\$",
            '^["]$',
            r"^[\\]$",
            "^[a&&b]$",
            "^[!-~]$",
            "^(?=a)a$",
            "^a{2001}$",
            "^a{,2}$",
            "^(a$",
        ),
        *(
            "^" + "(" * 100 + "a" + ")" * 100 + "$",
            "^[a",
            "^a**$",
            "^\\",
            "^[b-a]$",
            r"^\x41$",
            "^$a$",
            "^{2}$",
        ),
    ],
)
def test_other_expressions_are_not_followed(source: str) -> None:
    with pytest.raises(UnsupportedPattern):
        Pattern(source)


@cache
def _format(kind: str) -> Pattern:
    return Pattern(PATTERNS[kind])


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("date", "2024-02-29"),
        ("date-time", "2024-02-29T10:00:00.5Z"),
        ("email", "a.b+c@example.co-op.org"),
        ("email", "a@[127.0.0.1]"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000"),
    ],
)
def test_formats_are_followed(kind: str, text: str) -> None:
    assert _after(_format(kind), text) >= 0
    assert re.fullmatch(PATTERNS[kind], text)


def test_texts_of_an_email_have_few_states() -> None:
    pattern = _format("email")
    states = {_after(pattern, text) for text in ("a", "zz", "a.b", "x.y.z", "!#$")}
    assert len(states) == 1
