"""What a usage event amounts to in the words of limits."""

from __future__ import annotations

from billing.rates import RATE_LABEL
from billing.settling import metered
from tenants.limits.kinds import Amounts
from tests.support.journal import usage_event


def test_a_request_is_settled_with_all_its_tokens_and_what_they_cost() -> None:
    labels = {RATE_LABEL: "prc_1:1000000:500000:2000000:175"}
    found = metered(usage_event("req-1", 100, 10, 40, labels=labels))
    assert (found.tenant_id, found.request_id) == ("tnt_a", "req-1")
    assert found.used == Amounts(1, 100, 10, 175)  # (60 + 20 + 20) * 1.75


def test_a_request_without_a_rate_or_with_a_damaged_one_costs_nothing() -> None:
    for labels in ({}, {RATE_LABEL: "prc_1:1:2:3:4:5"}):
        assert metered(usage_event("req-1", 100, 10, 40, labels=labels)).used == Amounts(1, 100, 10, 0)
