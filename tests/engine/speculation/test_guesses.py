"""Guesses of draft adapters: their chances by how far ahead they are, and how many are worth their place."""

from __future__ import annotations

from random import Random

import pytest

from engine.speculation.budget import DraftBudget
from engine.speculation.guesses import _REST_STEPS, GuessAcceptance, Guessed
from engine.speculation.loss_limit import OF_GUESSES, LossLimit

KEY, OTHER = ("acme", "a", "d"), ("acme", "b", "d")


def test_chances_are_measured_by_place_and_key() -> None:
    acceptance = GuessAcceptance()
    before = acceptance.chances(KEY, 3)
    assert before == sorted(before, reverse=True)
    for _ in range(60):
        acceptance.add(KEY, 0, 3, 2)  # the third is never right
    first, second, third = acceptance.chances(KEY, 3)
    assert first > 0.95
    assert second > 0.95
    assert third < 0.1
    assert acceptance.chances(OTHER, 3) == before
    after_first = acceptance.chances(KEY, 3, first=1)
    assert after_first == pytest.approx([second / first, third / first])


def test_places_of_which_little_is_known_are_as_good_as_those_before() -> None:
    acceptance = GuessAcceptance()
    for _ in range(60):
        acceptance.add(KEY, 0, 1, 1)
    first, second = acceptance.chances(KEY, 2)
    assert second / first == pytest.approx(first, abs=0.01)


def test_guesses_that_are_not_worth_it_are_tried_again_later() -> None:
    acceptance = GuessAcceptance()
    for _ in range(6):
        acceptance.add(KEY, 0, 1, 0)
    low = acceptance.chances(KEY, 1)[0]
    for _ in range(4 * _REST_STEPS):
        acceptance.rest(KEY)
    assert low < 0.3 < 0.6 < acceptance.chances(KEY, 1)[0]
    acceptance.rest(OTHER)  # of which nothing is known


def test_guesses_follow_what_was_drawn_or_are_of_no_use() -> None:
    guessed = Guessed(KEY, 5, [7, 8, 9])
    begin = [1, 2, 3, 4]
    assert guessed.num_past(begin) is None, "the token before the first is missing"
    assert guessed.num_past([*begin, 6]) == 0
    assert guessed.num_past([*begin, 6, 7]) == 1
    assert guessed.num_past([*begin, 6, 8]) is None
    assert guessed.num_past([*begin, 6, 7, 8, 9]) is None, "none is left"


def measured_budget(num_rows: int, each: float) -> DraftBudget:
    """Steps take a second, and `each` more for each token besides one a row."""
    now = 0.0
    budget = DraftBudget(lambda: now)
    for num_more in [0] * 8 + [2, 4, 8, 16] * 8 + [0] * 4:
        budget.note_step(num_rows, num_more, 0)
        now += 1 + each * num_more
    budget.note_step(num_rows, 0, 0)
    return budget


def simulated(num: int, chances: list[float], price: float, steps: int = 40_000) -> float:
    """Tokens per time, in those of steps without drafts, of a row that always has so many placeholders."""
    random, tokens, time, has_drafts = Random(1), 0, 0.0, False
    for _ in range(steps):
        accepted = 0
        if has_drafts:
            number = random.random()
            accepted = sum(number < chance for chance in chances[:num])
        time += 1 + price * num * (1 + has_drafts)
        tokens += 1 + accepted
        has_drafts = not has_drafts or accepted == num
    return tokens / time


@pytest.mark.parametrize("price", [0.02, 0.1, 0.25])
@pytest.mark.parametrize("rate", [0.4, 0.7, 0.95])
def test_a_row_has_as_many_placeholders_as_make_its_tokens_cheapest(price: float, rate: float) -> None:
    chances = [rate**place for place in range(1, 7)]
    budget = measured_budget(1, price)
    found = budget.choose_placeholders(1, price, 1.0, chances)
    rates = [1.0, *(simulated(num, chances, price) for num in range(1, 7))]
    assert rates[found] > 0.99 * max(rates) or (found == 0 and max(rates) < 1.06)


def test_placeholders_behind_unlikely_drafts_are_left_out() -> None:
    budget = measured_budget(4, 0.05)
    chances = [0.8, 0.7, 0.6, 0.5]
    price = budget.placeholder_price(4, 4)
    assert price == pytest.approx(0.2, rel=0.2)
    many, few, none = (budget.choose_placeholders(4, 0.06, reach, chances) for reach in (1.0, 0.2, 0.02))
    assert many > few > none == 0


def test_nothing_is_guessed_before_a_step_without_was_measured() -> None:
    budget = DraftBudget(lambda: 0.0)
    assert budget.choose_placeholders(1, 0.0, 1.0, [0.9] * 4) == 0


def test_a_draft_adapter_may_lose_more_at_first_than_texts() -> None:
    guesses, texts = LossLimit[str](OF_GUESSES, OF_GUESSES), LossLimit[str]()
    assert guesses.balance("a") > 4 * texts.balance("a")
    guesses.add("a", 100.0)
    assert guesses.balance("a") == OF_GUESSES
