"""What followed the same tokens before is found again, and nothing of another tenant's or adapter's."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.speculation.suffixes import KEY_LEN, MAX_MATCH, NOTHING, SuffixIndex, Text
from engine.speculation.texts import Texts
from tests.support.examples import examples


def indexed(*texts: list[int]) -> SuffixIndex:
    index = SuffixIndex()
    for token_ids in texts:
        index.extend(Text(token_ids), len(token_ids))
    return index


def test_the_longest_match_decides() -> None:
    index = indexed([9, 1, 2, 3, 70, 71], [5, 4, 1, 2, 3, 80, 81], [0, 1, 2, 3, 90])
    guess = index.guess([5, 4, 1, 2, 3], 8)
    assert (guess.match_len, guess.token_ids, guess.shares) == (5, [80, 81], [1.0, 1.0])


def test_of_equal_matches_the_majority_decides_and_shares_say_how_large_it_is() -> None:
    index = indexed([1, 2, 3, 7, 8], [1, 2, 3, 7, 9], [1, 2, 3, 7, 8], [1, 2, 3, 6, 6])
    guess = index.guess([1, 2, 3], 2)
    assert (guess.token_ids, guess.shares) == ([7, 8], [0.75, 0.5])


def test_nothing_is_guessed_from_fewer_tokens_than_a_key() -> None:
    index = indexed([1, 2, 3, 4])
    assert index.guess([2, 3], 8) is NOTHING
    assert index.guess([3, 2, 1], 8) is NOTHING


def test_a_text_that_repeats_itself_is_its_own_source() -> None:
    tokens = [1, 2, 3, 4, 5, 1, 2, 3]
    assert indexed(tokens).guess(tokens, 8).token_ids == [4, 5, 1, 2, 3]


def by_definition(texts: list[list[int]], tokens: list[int], most: int) -> list[int]:
    """All places, compared one token after the other."""
    longest, cursors = 0, []
    for text in texts:
        for place in range(KEY_LEN, len(text)):
            length = 0
            while (
                length < min(place, len(tokens), MAX_MATCH)
                and text[place - 1 - length] == tokens[-1 - length]
            ):
                length += 1
            if length < KEY_LEN or length < longest:
                continue
            if length > longest:
                longest, cursors = length, []
            cursors.append((text, place))
    found: list[int] = []
    cursors.reverse()
    while len(found) < most and (cursors := [one for one in cursors if one[1] < len(one[0])]):
        following = [text[place] for text, place in cursors]
        found.append(max(following, key=following.count))
        cursors = [(text, place + 1) for text, place in cursors if text[place] == found[-1]]
    return found


@settings(max_examples=examples(100), deadline=None)
@given(
    texts=st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=3),
    tokens=st.lists(st.integers(0, 2), max_size=9),
    steps=st.lists(st.integers(1, 4), max_size=6),
)
def test_guesses_are_those_of_the_definition(
    texts: list[list[int]], tokens: list[int], steps: list[int]
) -> None:
    index = SuffixIndex()
    opened = [Text(token_ids) for token_ids in texts]
    for text in opened:
        for step in [*steps, 9]:
            index.extend(text, step)
    assert index.guess(tokens, 4).token_ids == by_definition(texts, tokens, 4)
    for text in opened:
        for step in [*steps, 9]:
            index.drop(text, step)
    assert len(index) == 0, "a place is left of what was dropped"


def words(random: Random, num: int) -> list[int]:
    return [random.randrange(50) for _ in range(num)]


def test_one_tenants_texts_are_never_another_tenants_drafts() -> None:
    texts = Texts()
    secret = words(Random(1), 200)
    first = texts.open("acme", "adapter", secret)
    texts.extend(first, 200)
    for tenant, adapter in (("bolt", "adapter"), ("acme", None), ("acme", "other"), ("bolt", None)):
        asking = texts.open(tenant, adapter, secret[:40])
        texts.extend(asking, 39)
        assert asking.guess(8).token_ids == [], (tenant, adapter)
    own = texts.open("acme", "adapter", secret[:40])
    assert own.guess(8).token_ids == secret[40:48]


def test_memory_is_bounded_by_tenant_and_the_oldest_goes_first() -> None:
    texts = Texts(tenant_tokens=600, all_tokens=10_000)
    random = Random(2)
    kept = [words(random, 200) for _ in range(6)]
    for token_ids in kept:
        opened = texts.open("acme", None, token_ids)
        texts.extend(opened, 200)
        texts.close(opened)
        assert texts.num_tokens <= 600
    assert texts.open("acme", None, kept[-1][:50]).guess(4).token_ids == kept[-1][50:54]
    assert texts.open("acme", None, kept[0][:50]).guess(4).token_ids == []


def test_a_tenant_that_floods_takes_nothing_from_one_with_few_texts() -> None:
    texts = Texts(tenant_tokens=5_000, all_tokens=6_000)
    random = Random(3)
    small = words(random, 400)
    opened = texts.open("small", None, small)
    texts.extend(opened, 400)
    texts.close(opened)
    for number in range(100):
        flood = texts.open(f"large{number % 2}", None, words(random, 300))
        texts.extend(flood, 300)
        texts.close(flood)
    assert texts.num_tokens <= 6_000
    assert texts.num_tokens_of("small") == 400
    assert texts.open("small", None, small[:50]).guess(8).token_ids == small[50:58]


@settings(max_examples=examples(60), deadline=None)
@given(random=st.integers(0, 2**32).map(Random))
def test_whatever_opens_grows_and_closes_the_counts_hold(random: Random) -> None:
    texts = Texts(tenant_tokens=300, all_tokens=700)
    opened = []
    for _ in range(120):
        action = random.random()
        if action < 0.3 or not opened:
            opened.append(texts.open(random.choice("abcde"), random.choice([None, "x"]), words(random, 30)))
        elif action < 0.8:
            one = random.choice(opened)
            one.text.token_ids += words(random, random.randrange(60))
            texts.extend(one, random.randrange(100))
        else:
            texts.close(opened.pop(random.randrange(len(opened))))
        assert texts.num_tokens <= 700
        assert all(texts.num_tokens_of(tenant) <= 300 for tenant in "abcde")
        assert texts.num_tokens == sum(texts.num_tokens_of(tenant) for tenant in "abcde")
    for one in opened:
        texts.close(one)
