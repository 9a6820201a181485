"""Prefixes that replicas hold: found by the longest, salted, bounded, forgotten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from routing.prefixes import MAX_PIECES, PIECE_TOKENS, PrefixMap, prefix_keys, session_key

PROMPT = list(range(1000))


def test_a_prompt_has_a_key_per_whole_piece() -> None:
    assert len(prefix_keys("t", None, PROMPT)) == 1000 // PIECE_TOKENS == 3
    assert prefix_keys("t", None, PROMPT[:255]) == ()
    assert len(prefix_keys("t", None, [7] * 10**6)) == MAX_PIECES


def test_another_tenant_or_adapter_shares_no_key() -> None:
    keys = [prefix_keys(*salt, PROMPT) for salt in (("t", None), ("u", None), ("t", "a"), ("t", "b"))]
    assert len({key for one in keys for key in one}) == 12
    assert session_key("t", None, "s") != session_key("u", None, "s") != session_key("u", "a", "s")


@given(st.integers(0, 1200), st.integers(0, 1200))
def test_prompts_share_the_keys_of_what_they_share(length: int, differs_at: int) -> None:
    other = [*PROMPT, *range(5000, 5300)][:length]
    if differs_at < len(other):
        other[differs_at] = -1
    shared = min(length, differs_at, len(PROMPT))
    mine, theirs = prefix_keys("t", None, PROMPT), prefix_keys("t", None, other)
    same = sum(one == two for one, two in zip(mine, theirs, strict=False))
    assert same == shared // PIECE_TOKENS


def test_the_longest_known_prefix_is_found() -> None:
    known = PrefixMap()
    keys = prefix_keys("t", None, PROMPT)
    assert known.find(keys, 0.0) is None
    known.learn(keys[:1], "one", 1.0)
    known.learn(keys[:2], "two", 2.0)
    assert known.find(keys, 3.0) == ("two", 2.0, 2)
    assert known.find(keys[:1], 3.0) == ("two", 2.0, 1), "the last that computed it"


def test_memory_is_bounded_and_the_least_used_is_forgotten_first() -> None:
    known = PrefixMap(max_keys=10)
    known.learn((1, 2), "a", 0.0)
    for number in range(100, 200):
        known.learn((number,), "b", 1.0)
        known.learn((1,), "a", 1.0)
        assert len(known) <= 10
    assert known.find((1,), 2.0) is not None
    assert known.find((2,), 2.0) is None


def test_what_was_not_used_for_long_is_forgotten() -> None:
    known = PrefixMap(forgotten_after=10.0)
    known.learn((1,), "a", 0.0)
    assert known.find((1,), 10.0) is not None
    assert known.find((1,), 10.1) is None
    for number in range(100):
        known.learn((2 + number,), "b", 100.0 + number)
    assert len(known) <= 12, "old keys go as new ones come"
