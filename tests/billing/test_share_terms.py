"""How the surcharge on a shared adapter is computed, divided and carried."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.errors import MalformedEvent
from billing.folding import measure
from billing.rates import SHARE_LABEL, Rate
from engine.protocol import Usage
from tenants.share_terms import MAX_SURCHARGE, ShareTerms
from tests.support.examples import examples
from tests.support.journal import usage_event

TERMS = ShareTerms("shr_1", "tnt_owner", 1_000_000, 3_000_000, 80)
COUNTS = st.integers(0, 2**53)
PRICES = st.integers(0, MAX_SURCHARGE)
terms = st.builds(ShareTerms, st.just("shr_1"), st.just("tnt_o"), PRICES, PRICES, st.integers(0, 100))


@given(terms=terms, prompt=COUNTS, completion=COUNTS)
def test_both_parts_are_exact_but_for_one_rounding(terms: ShareTerms, prompt: int, completion: int) -> None:
    exact = Fraction(prompt * terms.input + completion * terms.output, 10**6)
    surcharge, owner = terms.surcharge(prompt, completion), terms.owner_part(prompt, completion)
    assert 0 <= surcharge - exact < 1
    assert 0 <= exact * terms.owner_percent / 100 - owner < 1
    platform = surcharge - owner
    assert platform >= 0
    assert platform + owner == surcharge
    assert platform >= exact * (100 - terms.owner_percent) / 100, "rounding is never at the platform's cost"


@settings(max_examples=examples(40))
@given(terms=terms, parts=st.lists(st.tuples(COUNTS, COUNTS), max_size=5))
def test_a_request_that_grows_never_costs_less(terms: ShareTerms, parts: list[tuple[int, int]]) -> None:
    grown = sorted((min(one), max(one)) for one in parts)
    for before, after in pairwise(grown):
        larger = tuple(map(max, before, after))
        assert terms.surcharge(*larger) >= terms.surcharge(*before)
        assert terms.owner_part(*larger) >= terms.owner_part(*before)


@given(terms=terms)
def test_labels_carry_the_rate_with_its_share(terms: ShareTerms) -> None:
    rate = Rate("prc_1", 5, 4, 7, 150, terms)
    assert Rate.of_labels(rate.labels) == rate
    assert Rate.of_labels(Rate("prc_1", 5, 4, 7).labels).share is None


def test_the_tiers_percentage_does_not_touch_the_surcharge() -> None:
    usage = Usage(1_000_000, 0, 1_000_000)
    for percent in (0, 50, 300):
        rate = Rate("prc_1", 10, 10, 10, percent, TERMS)
        assert rate.cost(usage) == Rate("prc_1", 10, 10, 10, percent).cost(usage) + 4_000_000
        assert rate.worst(1_000_000, 1_000_000) == rate.cost(usage)


@pytest.mark.parametrize(
    "label",
    [
        "shr_1", "shr_1:tnt:1:2", "shr_1:tnt:1:2:101", "shr_1:tnt:-1:2:3", ":tnt:1:2:3", "shr_1::1:2:3",
        f"shr_1:tnt:{MAX_SURCHARGE + 1}:2:3", "shr_1:tnt:1:2:3:4", "shr 1:tnt:1:2:3", "shr_1:tnt:1:٢:3",
    ],
)  # fmt: skip
def test_a_label_that_is_none_becomes_a_dead_letter(label: str) -> None:
    with pytest.raises(MalformedEvent):
        measure(usage_event(labels={SHARE_LABEL: label}))


def test_a_row_says_whose_the_adapter_is_and_its_terms() -> None:
    row = measure(usage_event(labels={SHARE_LABEL: TERMS.label}))
    assert (row.owner_id, row.share_id, row.owner_percent) == ("tnt_owner", "shr_1", 80)
    assert (row.share_input_price, row.share_output_price) == (1_000_000, 3_000_000)
    assert measure(usage_event(labels={})).owner_id is None
