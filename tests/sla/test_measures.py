from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sla.measures import FIRST_TOKEN_EDGES, OUTPUT_RATE_EDGES, Counts, percentile
from sla.objectives import burn_rate, credit_percent, delivered_ppm, error_budget
from tenants.tier_terms import Terms

PROMISE = Terms(
    ttft_target_ms=500,
    min_output_tokens_per_second=50,
    availability_ppm=999_000,
    output_rate_ppm=990_000,
    credits=((999_000, 10), (990_000, 25), (950_000, 100)),
)


@given(
    st.lists(st.floats(0.002, 800), min_size=1, max_size=200), st.sampled_from([0.01, 0.5, 0.95, 0.99, 1.0])
)
def test_a_percentile_is_within_a_bucket_of_the_exact_one(seconds: list[float], share: float) -> None:
    counts = Counts()
    for value in seconds:
        counts.first_token(value, 0.5)
    exact = sorted(seconds)[math.ceil(share * len(seconds)) - 1]
    found = percentile(counts.first_token_histogram, FIRST_TOKEN_EDGES, share)
    assert found is not None
    assert exact / 2**0.25 <= found * (1 + 1e-9)
    assert found <= exact * 2**0.25 * (1 + 1e-9)


def test_percentiles_of_nothing_and_of_what_is_off_the_scale() -> None:
    counts = Counts()
    assert percentile(counts.output_rate_histogram, OUTPUT_RATE_EDGES, 0.5) is None
    counts.output_rate(1e9, 50)
    assert percentile(counts.output_rate_histogram, OUTPUT_RATE_EDGES, 0.5) == OUTPUT_RATE_EDGES[-1]
    counts.first_token(0.0, 0.5)
    found = percentile(counts.first_token_histogram, FIRST_TOKEN_EDGES, 0.5)
    assert found is not None
    assert found <= 0.001


def test_what_was_promised_is_counted_exactly() -> None:
    counts = Counts()
    for seconds in (0.5, 0.5000001, 0.1):
        counts.first_token(seconds, 0.5)
    for rate in (50.0, 49.999, 200.0):
        counts.output_rate(rate, 50)
    assert (counts.first_tokens, counts.first_tokens_in_time) == (3, 2)
    assert (counts.rated, counts.rated_fast) == (3, 2)


def test_counts_add_up() -> None:
    one, other = Counts(requests=3, failed=1), Counts(requests=4)
    one.first_token(0.1, 0.5)
    other.first_token(2.0, 0.5)
    one.add(other)
    assert (one.requests, one.failed, one.first_tokens, one.first_tokens_in_time) == (7, 1, 2, 1)
    assert sum(one.first_token_histogram) == 2


@pytest.mark.parametrize(
    ("requests", "failed", "rated", "fast", "percent"),
    [
        (0, 0, 0, 0, 0),
        (1000, 1, 100, 99, 0),  # both promises kept to the point
        (1000, 2, 100, 100, 10),
        (1001, 2, 100, 100, 10),  # 99.8002 %: rounding does not keep a promise
        (1000, 11, 100, 100, 25),
        (1000, 51, 100, 100, 100),
        (1000, 0, 1000, 989, 25),  # 98.9 % fast enough, where 99 % were promised
        (10, 0, 0, 0, 0),
    ],
)
def test_credit(requests: int, failed: int, rated: int, fast: int, percent: int) -> None:
    assert credit_percent(PROMISE, Counts(requests, failed, 0, 0, rated, fast)) == percent


def test_a_class_without_promises_owes_nothing() -> None:
    terms = Terms(credits=((999_000, 10),))
    assert credit_percent(terms, Counts(10, 10, 0, 0, 10, 0)) == 0
    assert error_budget(terms, Counts(10, 10)) is None
    assert burn_rate(terms, 10, 10) is None


def test_error_budget_and_burn_rate() -> None:
    budget = error_budget(PROMISE, Counts(requests=10_000, failed=4))
    assert budget is not None
    assert (budget.allowed, budget.spent, budget.remaining) == (10, 4, 6)
    overspent = error_budget(PROMISE, Counts(requests=1000, failed=40))
    assert overspent is not None
    assert overspent.remaining == 0
    assert burn_rate(PROMISE, 1000, 1) == pytest.approx(1.0)
    assert burn_rate(PROMISE, 100, 5) == pytest.approx(50.0)
    assert burn_rate(PROMISE, 0, 0) is None


def test_shares_are_rounded_down() -> None:
    assert delivered_ppm(2, 3) == 666_666
    assert delivered_ppm(0, 0) is None
