"""Rate limits by a process's share, with a clock that the test sets and no Redis."""

from __future__ import annotations

import math
import struct

import pytest

from tenants.limits.kinds import Limit, Metric
from tenants.quotas import Contract
from tenants.quotas.local_share import MAX_PLANS_OF_TENANT, UNIT, LocalShare
from tenants.quotas.plan import CompiledPlan, compile_plan
from tenants.quotas.scripts import Scripts
from tests.tenants.quotas.conftest import TENANT, limit

SCRIPTS = Scripts()


class Share:
    """A process's share, and one kind of request after the other."""

    def __init__(self, processes: int = 1) -> None:
        self.now = 1000.0
        self.local = LocalShare(lambda: self.now)
        self.local.processes = processes

    def wait(self, plan: CompiledPlan, tokens: int = 0, held: int = 0) -> float:
        """0 when the request is granted, else the seconds that it is told to wait."""
        refusal = self.local.reserve(plan, (1, tokens, 0, tokens), lambda name: held)
        return 0.0 if refusal is None else refusal.retry_after

    def settle(self, plan: CompiledPlan, expected: int, used: int, began: float, within: bool = True) -> None:
        self.local.settle(plan, (1, expected, 0, expected), (1, used, 0, used), began, within)

    def told(self, plan: CompiledPlan) -> dict[str, float]:
        """What Redis is told of the plan's buckets, in units."""
        raised = self.local.take_unreported().get(plan.tag, [])
        return {one.bucket.name.partition(":")[0]: one.level / UNIT for one in raised}


def plan_of(*limits: Limit, contract: Contract | None = None) -> CompiledPlan:
    plan = compile_plan(SCRIPTS, TENANT, limits, contract)
    assert plan is not None
    return plan


def levels(*units: float) -> bytes:
    """As Redis answers them."""
    return struct.pack(f"<{len(units)}d", *(round(one * UNIT) for one in units))


RPM = plan_of(limit(Metric.REQUESTS_PER_MINUTE, 60))
TPM = plan_of(limit(Metric.TOKENS_PER_MINUTE, 60))
PLACES = plan_of(limit(Metric.CONCURRENT_REQUESTS, 4))


# Shares ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", [Metric.REQUESTS_PER_MINUTE, Metric.CONCURRENT_REQUESTS])
@pytest.mark.parametrize("processes", [1, 3])
def test_a_limit_of_0_grants_nothing_ever(metric: Metric, processes: int) -> None:
    assert Share(processes).wait(plan_of(limit(metric, 0))) == math.inf


def test_a_limit_below_the_number_of_processes_grants_one_request_in_each() -> None:
    share, plan = Share(5), plan_of(limit(Metric.CONCURRENT_REQUESTS, 2))
    assert share.wait(plan) == 0
    assert share.wait(plan) == 1.0, "and then its one place is taken"
    share.settle(plan, 0, 0, share.now)
    assert share.wait(plan) == 0


def test_places_are_the_share_and_come_back() -> None:
    share = Share(2)
    assert [share.wait(PLACES) for _ in range(3)] == [0, 0, 1.0]
    share.settle(PLACES, 0, 0, share.now)
    assert [share.wait(PLACES) for _ in range(2)] == [0, 1.0]


def test_places_that_the_process_holds_in_redis_are_of_its_share() -> None:
    share = Share()
    assert share.wait(PLACES, held=4) == 1.0
    assert share.wait(PLACES, held=3) == 0
    assert share.wait(PLACES, held=3) == 1.0


def test_a_refused_request_takes_of_no_limit() -> None:
    plan = plan_of(limit(Metric.REQUESTS_PER_MINUTE, 60), limit(Metric.TOKENS_PER_MINUTE, 60))
    share = Share()
    assert share.wait(plan, tokens=61) == math.inf
    assert share.wait(plan, tokens=60) == 0
    assert share.told(plan) == {"requests_per_minute": 1, "tokens_per_minute": 60}


def test_the_longest_wait_of_several_limits_is_told() -> None:
    plan = plan_of(limit(Metric.REQUESTS_PER_MINUTE, 60), limit(Metric.TOKENS_PER_MINUTE, 60))
    share = Share()
    assert share.wait(plan, tokens=60) == 0
    for _ in range(59):
        assert share.wait(plan) == 0
    assert share.wait(plan, tokens=30) == pytest.approx(30), "of tokens, and 1 s of requests"


# Rates ----------------------------------------------------------------------------------------------------


def test_a_rate_drains_evenly_and_the_wait_is_exact() -> None:
    share = Share()
    assert share.wait(TPM, tokens=60) == 0
    assert share.wait(TPM, tokens=10) == pytest.approx(10)
    share.now += 9.99
    assert share.wait(TPM, tokens=10) == pytest.approx(0.01)
    share.now += 0.011
    assert share.wait(TPM, tokens=10) == 0


def test_a_need_over_the_share_passes_alone_and_the_share_waits_for_it() -> None:
    share = Share(3)  # shares of 20
    share.now += 1000
    share.wait(TPM, tokens=1)  # the outage begins here
    share.now += 60  # and what others may have used has drained
    assert share.wait(TPM, tokens=50) == 0
    assert share.wait(TPM, tokens=20) == pytest.approx(150), "all 50 have to drain, at 20 a minute"
    assert share.wait(TPM, tokens=50) == pytest.approx(150), "and no second one beside it"
    assert share.wait(TPM, tokens=61) == math.inf


def test_what_was_not_used_is_returned_unless_it_has_drained_meanwhile() -> None:
    share = Share()
    assert share.wait(TPM, tokens=60) == 0
    share.settle(TPM, 60, 10, began=share.now)
    assert share.wait(TPM, tokens=50) == 0
    assert share.wait(TPM, tokens=1) > 0

    share = Share()
    began = share.now
    assert share.wait(TPM, tokens=60) == 0
    share.now += 20  # 20 of the 50 that were not used have drained as if they had been
    share.settle(TPM, 60, 10, began)
    assert share.wait(TPM, tokens=51) > 0
    assert share.wait(TPM, tokens=50) == 0

    share = Share()
    began = share.now
    assert share.wait(TPM, tokens=60) == 0
    share.now += 50
    assert share.wait(TPM, tokens=50) == 0
    share.settle(TPM, 60, 10, began)  # all of it has drained
    assert share.wait(TPM, tokens=1) > 0


def test_more_than_was_expected_is_a_debt() -> None:
    share = Share()
    assert share.wait(TPM, tokens=10) == 0
    share.settle(TPM, 10, 70, began=share.now)
    assert share.wait(TPM, tokens=10) == pytest.approx(20)


def test_a_contract_refuses_nothing_and_counts_only_what_is_within_it() -> None:
    share = Share()
    plan = plan_of(contract=Contract("priority", 100))
    assert share.wait(plan, tokens=1000) == 0

    def within(tokens: int) -> bool:
        return share.local.within_contract(plan, (1, tokens, 0, tokens))

    assert [within(60), within(60), within(40), within(1)] == [True, False, True, False]
    share.settle(plan, 60, 10, share.now, within=False)
    assert not within(1), "what was not within it returns nothing"
    share.settle(plan, 60, 10, share.now, within=True)
    assert within(50)
    assert not within(101), "never more than the contract"


# What Redis granted before --------------------------------------------------------------------------------


def test_a_share_begins_with_the_level_in_the_last_answer() -> None:
    share = Share()
    share.local.redis_answered(RPM, levels(20))
    share.local.redis_answered(RPM, levels(50))
    share.now += 5  # five have drained
    assert [share.wait(RPM) for _ in range(16)] == [0] * 15 + [pytest.approx(1)]


def test_an_answer_to_another_key_of_the_tenant_tells_of_the_same_limit() -> None:
    of_key = limit(Metric.REQUESTS_PER_MINUTE, 1000, scope="key", of="key_2")
    other = plan_of(of_key, limit(Metric.REQUESTS_PER_MINUTE, 60))
    share = Share()
    share.local.redis_answered(RPM, levels(10))
    share.now += 1
    share.local.redis_answered(other, levels(5, 60))
    assert share.wait(RPM) == pytest.approx(1)


def test_an_earlier_answer_does_not_replace_a_later_one() -> None:
    other = plan_of(limit(Metric.REQUESTS_PER_MINUTE, 60), limit(Metric.TOKENS_PER_MINUTE, 9))
    share = Share()
    share.local.redis_answered(RPM, levels(60))
    share.local.redis_answered(other, levels(60, 0))
    share.now += 10
    share.local.redis_answered(RPM, levels(30))
    assert share.wait(RPM) == 0


def test_with_other_processes_a_share_begins_full_and_is_whole_after_a_minute() -> None:
    share = Share(2)  # shares of 30
    share.local.redis_answered(RPM, levels(0))
    assert share.wait(RPM) == pytest.approx(2)
    share.now += 2
    assert [share.wait(RPM) for _ in range(2)] == [0, pytest.approx(2)]
    other = plan_of(limit(Metric.REQUESTS_PER_MINUTE, 60, model="sapling"))
    share.now += 28  # half a minute after the outage began
    assert [share.wait(other) for _ in range(16)] == [0] * 15 + [pytest.approx(2)]


def test_a_debt_in_redis_is_shared_too() -> None:
    share = Share(2)
    share.local.redis_answered(RPM, levels(120))
    assert share.wait(RPM) == pytest.approx((60 + 1 - 30) * 2)


def test_each_outage_begins_with_what_redis_granted_since_the_last() -> None:
    share = Share()
    assert [share.wait(RPM) for _ in range(10)] == [0] * 10
    share.local.redis_answered(RPM, levels(59))
    assert share.wait(RPM) == 0
    assert share.wait(RPM) == pytest.approx(1)


def test_answers_are_kept_of_so_many_plans_of_a_tenant() -> None:
    share = Share()
    plans = [
        plan_of(limit(Metric.REQUESTS_PER_MINUTE, 60, scope="key", of=f"k{number}"))
        for number in range(MAX_PLANS_OF_TENANT + 1)
    ]
    for plan in plans:
        share.local.redis_answered(plan, levels(60))
    assert share.wait(plans[0]) == 0
    assert share.wait(plans[1]) > 0
    assert share.wait(plans[-1]) > 0


# What Redis is told afterwards ----------------------------------------------------------------------------


def test_what_was_granted_is_told_once_as_it_has_drained() -> None:
    share = Share()
    assert not share.local.has_unreported
    assert share.wait(TPM, tokens=50) == 0
    assert share.local.has_unreported
    share.now += 20
    assert share.told(TPM) == {"tokens_per_minute": pytest.approx(30)}
    assert not share.local.has_unreported
    assert share.told(TPM) == {}


def test_of_a_shared_limit_the_shares_of_others_count_as_used() -> None:
    share = Share(3)
    share.wait(TPM)
    share.now += 60
    assert share.wait(TPM, tokens=5) == 0
    assert share.told(TPM) == {"tokens_per_minute": pytest.approx(5 + 40)}


def test_what_redis_did_not_take_is_told_again() -> None:
    share = Share()
    assert share.wait(TPM, tokens=50) == 0
    raised = share.local.take_unreported()
    share.local.report_again(TPM.tag, raised[TPM.tag])
    share.now += 10
    assert share.told(TPM) == {"tokens_per_minute": pytest.approx(40)}


def test_a_refused_request_leaves_nothing_to_tell() -> None:
    share = Share()
    assert share.wait(TPM, tokens=61) == math.inf
    assert not share.local.has_unreported
