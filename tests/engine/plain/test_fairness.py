"""Who is next: classes by weight, tenants by service, requests by arrival; none is left waiting for ever."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.protocol import AdapterRef, PriorityClass
from engine.request import Request
from engine.scheduling.fairness import CLASS_WEIGHTS, LOAD_COST_PER_RANK, FairQueue
from tests.engine.plain.arrivals import Arrivals, everyone
from tests.engine.plain.harness import adapter
from tests.support.examples import examples

PRIORITY, DEFAULT, FLEX = PriorityClass


def push(queue: FairQueue, request: Request, first: bool = False, now: float = 0.0) -> None:
    queue.push(request, now, first)


def push_back(queue: FairQueue, request: Request, now: float = 0.0) -> None:
    queue.push_returning(request, now)


def serve(queue: FairQueue, now: float = 0.0, cost: int = 10) -> Request:
    """Admit the next request, and compute its prompt."""
    queue.take_turns(now)
    request = take(queue)
    queue.charge_prefill(request, cost)
    return request


def take(queue: FairQueue) -> Request:
    request = queue.pick(everyone)
    assert request is not None
    queue.take(request)
    return request


def test_one_tenants_requests_go_in_order_of_arrival_whatever_their_adapters() -> None:
    queue, arrivals = FairQueue(), Arrivals()
    refs = [adapter("a"), None, adapter("b"), adapter("a"), None]
    requests = [arrivals.request(ref=ref) for ref in refs]
    for request in requests:
        push(queue, request)
    assert [take(queue) for _ in requests] == requests
    assert queue.pick(everyone) is None
    assert len(queue) == 0


@pytest.mark.parametrize("cost", [1, 500])
def test_classes_share_by_weight_once_flex_has_waited_for_long(cost: int) -> None:
    queue, arrivals = FairQueue(flex_wait_s=30.0), Arrivals()
    for priority in PriorityClass:
        for _ in range(420):
            push(queue, arrivals.request(priority=priority))
    first = Counter(serve(queue, 30.0, cost).priority for _ in range(420))
    total = sum(CLASS_WEIGHTS.values())
    for priority, weight in CLASS_WEIGHTS.items():
        assert abs(first[priority] - 420 * weight / total) <= 2


def test_flex_has_what_others_leave_until_it_has_waited_for_long() -> None:
    queue, arrivals = FairQueue(flex_wait_s=30.0), Arrivals()
    for priority in PriorityClass:
        for _ in range(100):
            push(queue, arrivals.request(priority=priority))
    served = Counter(serve(queue, 29.9).priority for _ in range(100))
    assert served == {PRIORITY: 80, DEFAULT: 20}
    for _ in range(100):
        served[serve(queue, 29.9).priority] += 1
    assert served == {PRIORITY: 100, DEFAULT: 100}
    assert serve(queue, 29.9).priority is FLEX


def test_what_others_left_to_flex_is_not_held_against_it() -> None:
    """After a night alone it is served within its bound in the morning's rush, as if it had never run."""
    queue, arrivals = FairQueue(flex_wait_s=30.0), Arrivals()
    for _ in range(500):
        push(queue, arrivals.request("night", FLEX))
        serve(queue, cost=10_000)
    flex = arrivals.request("night", FLEX)
    push(queue, flex, now=100.0)
    num_before = 0
    while num_before < 100:
        push(queue, arrivals.request("rush", PRIORITY), now=100.0)
        push(queue, arrivals.request("rush", DEFAULT), now=100.0)
        if serve(queue, 130.0) is flex:
            break
        num_before += 1
    assert num_before <= 2


def test_flex_waits_for_a_bounded_number_of_admissions_under_any_load_above_it() -> None:
    queue, arrivals = FairQueue(flex_wait_s=30.0), Arrivals()
    for _ in range(50):
        push(queue, arrivals.request("big", PRIORITY))
        push(queue, arrivals.request("big", DEFAULT))
    waiting = [arrivals.request("small", FLEX) for _ in range(5)]
    for request in waiting:
        push(queue, request)
    gaps, num_admitted_before = [], 0
    while waiting:
        if serve(queue, 31.0) is waiting[0]:
            waiting.pop(0)
            gaps.append(num_admitted_before)
            num_admitted_before = 0
        else:
            num_admitted_before += 1
        push(queue, arrivals.request("big", PRIORITY), now=31.0)
        push(queue, arrivals.request("big", DEFAULT), now=31.0)
    assert max(gaps) <= 21


def test_flex_that_is_admitted_in_turn_makes_way_for_nobody() -> None:
    queue, arrivals = FairQueue(flex_wait_s=30.0), Arrivals()
    early, late = arrivals.request("small", FLEX), arrivals.request("small", FLEX)
    push(queue, early)
    assert serve(queue, 1.0) is early
    assert not early.protected_until
    push(queue, late)
    for _ in range(2):
        push(queue, arrivals.request("big", PRIORITY))
    serve(queue, 30.0)
    assert serve(queue, 30.0) is late
    assert late.protected_until == late.limit


def test_a_lone_higher_class_request_goes_before_a_lower_backlog() -> None:
    queue, arrivals = FairQueue(), Arrivals()
    for _ in range(20):
        push(queue, arrivals.request("big", FLEX))
    for _ in range(5):
        serve(queue)
    urgent = arrivals.request("small", PRIORITY)
    push(queue, urgent)
    assert serve(queue) is urgent


def test_a_class_that_comes_late_is_given_its_share_and_not_the_past() -> None:
    queue, arrivals = FairQueue(), Arrivals()
    for _ in range(430):
        push(queue, arrivals.request(priority=PRIORITY))
    for _ in range(400):
        serve(queue)
    for _ in range(30):
        push(queue, arrivals.request(priority=DEFAULT))
    assert Counter(serve(queue).priority for _ in range(10)) == {PRIORITY: 8, DEFAULT: 2}


def test_priority_is_ahead_from_its_head_start_on_until_default_has_caught_up() -> None:
    queue, arrivals = FairQueue(head_start=100.0), Arrivals()
    push(queue, arrivals.request(priority=DEFAULT))
    for _ in range(4):
        push(queue, arrivals.request(priority=PRIORITY))
    heads = []
    for rows in ([400, 0, 0], [400, 0, 0], [8, 0, 0], [0, 100, 0], [0, 101, 0], [0, 2, 0]):
        queue.charge_rows(rows)
        queue.take_turns(0.0)
        heads.append(queue.priority_is_ahead)
    assert heads == [False, False, True, True, True, False]


def test_priority_is_never_ahead_of_nobody() -> None:
    queue, arrivals = FairQueue(head_start=1.0), Arrivals()
    push(queue, arrivals.request(priority=PRIORITY))
    queue.charge_rows([1000, 50, 50])
    queue.take_turns(0.0)
    assert not queue.priority_is_ahead


def test_an_adapter_that_has_to_be_loaded_counts_as_service() -> None:
    queue, arrivals = FairQueue(), Arrivals()
    for _ in range(20):
        for tenant in ("collector", "plain"):
            push(queue, arrivals.request(tenant))
    served: Counter[str] = Counter()
    for _ in range(18):
        request = serve(queue, cost=16)
        served[request.tenant] += 1
        if request.tenant == "collector":
            queue.charge_load(request, AdapterRef("0" * 64, 16))
    assert LOAD_COST_PER_RANK * 16 == 128.0
    assert served == {"collector": 2, "plain": 16}


def test_of_equals_the_one_with_fewer_running_is_next() -> None:
    queue, arrivals = FairQueue(), Arrivals()
    busy, idle = arrivals.request("busy"), arrivals.request("idle")
    push(queue, arrivals.request("busy"))
    running = take(queue)
    assert running.tenant_share is not None
    running.tenant_share.num_running = 1
    push(queue, busy)
    push(queue, idle)
    assert take(queue) is idle


def test_the_last_of_who_has_most_waiting_is_named() -> None:
    queue, arrivals = FairQueue(), Arrivals()
    for tenant in ("few", "many", "many", "many", "few"):
        push(queue, arrivals.request(tenant, ref=adapter(str(arrivals.count % 2))))
    last = queue.last_of_most_waiting(DEFAULT, 2)
    assert last is not None
    assert last.request_id == "r4"
    assert queue.last_of_most_waiting(DEFAULT, 3) is None
    assert queue.last_of_most_waiting(FLEX) is None


def test_the_least_served_tenant_is_next() -> None:
    queue, arrivals = FairQueue(), Arrivals()
    for _ in range(10):
        push(queue, arrivals.request("heavy"))
        push(queue, arrivals.request("light"))
    served: Counter[str] = Counter()
    for _ in range(8):
        request = take(queue)
        served[request.tenant] += 1
        queue.charge_prefill(request, 300 if request.tenant == "heavy" else 100)
    assert served == {"heavy": 2, "light": 6}


def test_generated_tokens_count_double() -> None:
    queue, arrivals = FairQueue(), Arrivals()
    reader, writer = arrivals.request("reader"), arrivals.request("writer")
    for request in (reader, writer):
        push(queue, request)
        take(queue)
    queue.charge_prefill(reader, 15)
    queue.charge_decode([writer] * 10)
    for tenant in ("writer", "reader"):
        push(queue, arrivals.request(tenant))
    assert take(queue).tenant == "reader"


def test_idleness_earns_no_credit() -> None:
    queue, arrivals = FairQueue(), Arrivals()
    busy = arrivals.request("busy")
    push(queue, busy)
    push(queue, arrivals.request("busy"))
    queue.charge_prefill(take(queue), 10_000)
    for _ in range(10):
        push(queue, arrivals.request("late"))
        push(queue, arrivals.request("busy"))
    served: Counter[str] = Counter()
    for _ in range(8):
        request = take(queue)
        served[request.tenant] += 1
        queue.charge_prefill(request, 100)
    assert served == {"busy": 4, "late": 4}


def test_the_preempted_return_first_in_order_of_arrival_and_pay_nothing() -> None:
    queue, arrivals = FairQueue(), Arrivals()
    early, late = arrivals.request("acme"), arrivals.request("bolt")
    for request in (early, late):
        push(queue, request)
    assert [take(queue), take(queue)] == [early, late]
    newcomer = arrivals.request("cog")
    push(queue, newcomer)
    queue.charge_prefill(early, 1000)
    push_back(queue, late)
    push_back(queue, early)
    assert [take(queue) for _ in range(3)] == [early, late, newcomer]


def test_requests_whose_adapter_is_not_admitted_block_nobody() -> None:
    queue, arrivals = FairQueue(), Arrivals()
    missing, present = adapter("missing"), adapter("present")
    stuck = [arrivals.request("acme", ref=missing), arrivals.request("bolt", PRIORITY, missing)]
    free = [arrivals.request("acme", ref=present), arrivals.request("acme"), arrivals.request("cog", FLEX)]
    for request in stuck + free:
        push(queue, request)
    taken = []
    while (request := queue.pick(lambda ref: ref != missing)) is not None:
        queue.take(request)
        taken.append(request)
    queue.unpark()
    assert set(taken) == set(free)
    assert {take(queue), take(queue)} == set(stuck)


def test_a_pass_asks_once_for_each_adapter_not_admitted() -> None:
    queue, arrivals = FairQueue(), Arrivals()
    refs = [adapter(f"a{number}") for number in range(10)]
    for number, ref in enumerate(refs):
        for _ in range(5):
            push(queue, arrivals.request(f"t{number}", ref=ref))
    for number in range(20):
        push(queue, arrivals.request(f"t{number}"))
    asked: Counter[str] = Counter()

    def nobody(ref: AdapterRef) -> bool:
        asked[ref.digest] += 1
        return False

    num_taken = 0
    while (request := queue.pick(nobody)) is not None:
        queue.take(request)
        num_taken += 1
    assert num_taken == 20
    assert max(asked.values()) <= 2


def test_tenants_long_gone_are_forgotten_and_debtors_are_not() -> None:
    queue, arrivals = FairQueue(), Arrivals()
    debtor = arrivals.request("debtor")
    push(queue, debtor)
    queue.charge_prefill(take(queue), 10**6)
    for number in range(9000):
        push(queue, arrivals.request(f"t{number}"))
        queue.charge_prefill(take(queue), 1)
    lane = queue._lanes[DEFAULT]
    assert len(lane.tenants) <= 2100
    push(queue, arrivals.request("fresh"))
    push(queue, arrivals.request("debtor"))
    push(queue, arrivals.request("fresh"))
    assert [take(queue).tenant for _ in range(3)] == ["fresh", "fresh", "debtor"]


@settings(max_examples=examples(60), deadline=None)
@given(random=st.integers(0, 2**32).map(Random))
def test_nothing_is_lost_whatever_happens(random: Random) -> None:
    queue, arrivals = FairQueue(), Arrivals()
    refs = [None, adapter("a"), adapter("b")]
    waiting: set[Request] = set()
    running: list[Request] = []
    returned: set[Request] = set()
    for _ in range(120):
        match random.randrange(5):
            case 0 | 1:
                request = arrivals.request(
                    random.choice("xyz"), random.choice(list(PriorityClass)), random.choice(refs)
                )
                push(queue, request, first=random.random() < 0.2)
                waiting.add(request)
            case 2:
                admitted = random.choice(refs)
                picked = queue.pick(lambda ref, admitted=admitted: ref == admitted)  # type: ignore[misc]
                if picked is None:
                    queue.unpark()
                    assert all(r.adapter is not None and r.adapter != admitted for r in waiting)
                else:
                    assert picked.adapter in (None, admitted)
                    queue.take(picked)
                    queue.unpark()
                    waiting.remove(picked)
                    returned.discard(picked)
                    running.append(picked)
                    queue.charge_decode([picked])
            case 3 if running:
                victim = running.pop()
                push_back(queue, victim)
                waiting.add(victim)
                returned.add(victim)
            case 4 if waiting:
                gone = random.choice(sorted(waiting, key=lambda request: request.rank))
                queue.discard(gone)
                waiting.remove(gone)
        queue.take_turns(float(random.randrange(100)))
        assert set(queue) == waiting
        assert len(queue) == len(waiting)
        for priority in PriorityClass:
            theirs = [request for request in waiting if request.priority is priority]
            assert queue.num_waiting(priority) == len(theirs)
            assert queue.num_tokens_waiting(priority) == sum(request.total_len for request in theirs)
            new = [request for request in theirs if request not in returned]
            assert queue.num_tenants_waiting(priority) == len({request.tenant for request in new})
            for tenant in "xyz":
                own = sum(request.tenant == tenant for request in new)
                assert queue.tenant_waits(priority, tenant) == (own, 0)
    for _ in range(len(waiting)):
        waiting.remove(take(queue))
    assert queue.pick(everyone) is None
