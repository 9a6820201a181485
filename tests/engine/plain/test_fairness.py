"""Who is next: classes by weight, tenants by service, requests by arrival; none is left waiting for ever."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.fairness import CLASS_WEIGHTS, FairQueue
from engine.kv_cache import BlockPool, BlockTable, prefix_root
from engine.protocol import AdapterRef, PriorityClass
from engine.request import Request, RequestGroup
from tests.engine.plain.harness import adapter, submission

PRIORITY, DEFAULT, FLEX = PriorityClass


class Arrivals:
    def __init__(self) -> None:
        self.pool = BlockPool(2)
        self.count = 0

    def request(
        self,
        tenant: str = "acme",
        priority: PriorityClass = DEFAULT,
        ref: AdapterRef | None = None,
    ) -> Request:
        self.count += 1
        submit = submission(f"r{self.count}", [1], tenant=tenant, priority=priority, adapter=ref)
        group = RequestGroup(submit, self.count, 2, 0)
        return Request(group, 0, BlockTable(self.pool, prefix_root(tenant, None)), {}, None)


def everyone(ref: AdapterRef) -> bool:
    return True


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
        queue.push(request)
    assert [take(queue) for _ in requests] == requests
    assert queue.pick(everyone) is None
    assert len(queue) == 0


def test_classes_share_admissions_by_weight() -> None:
    queue, arrivals = FairQueue(), Arrivals()
    for priority in PriorityClass:
        for _ in range(420):
            queue.push(arrivals.request(priority=priority))
    first = Counter(take(queue).priority for _ in range(420))
    total = sum(CLASS_WEIGHTS.values())
    for priority, weight in CLASS_WEIGHTS.items():
        assert abs(first[priority] - 420 * weight / total) <= 2


def test_flex_waits_for_a_bounded_number_of_admissions_under_any_load_above_it() -> None:
    queue, arrivals = FairQueue(), Arrivals()
    for _ in range(50):
        queue.push(arrivals.request("big", PRIORITY))
        queue.push(arrivals.request("big", DEFAULT))
    flex = arrivals.request("small", FLEX)
    queue.push(flex)
    num_admitted_before = 0
    while take(queue) is not flex:
        num_admitted_before += 1
        queue.push(arrivals.request("big", PRIORITY))
        queue.push(arrivals.request("big", DEFAULT))
    assert num_admitted_before <= 20


def test_a_lone_higher_class_request_goes_before_a_lower_backlog() -> None:
    queue, arrivals = FairQueue(), Arrivals()
    for _ in range(20):
        queue.push(arrivals.request("big", FLEX))
    for _ in range(5):
        take(queue)
    urgent = arrivals.request("small", PRIORITY)
    queue.push(urgent)
    assert take(queue) is urgent


def test_a_class_that_comes_late_is_given_its_share_and_not_the_past() -> None:
    queue, arrivals = FairQueue(), Arrivals()
    for _ in range(430):
        queue.push(arrivals.request(priority=DEFAULT))
    for _ in range(400):
        take(queue)
    for _ in range(30):
        queue.push(arrivals.request(priority=FLEX))
    assert Counter(take(queue).priority for _ in range(10)) == {DEFAULT: 8, FLEX: 2}


def test_the_least_served_tenant_is_next() -> None:
    queue, arrivals = FairQueue(), Arrivals()
    for _ in range(10):
        queue.push(arrivals.request("heavy"))
        queue.push(arrivals.request("light"))
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
        queue.push(request)
        take(queue)
    queue.charge_prefill(reader, 15)
    queue.charge_decode([writer] * 10)
    for tenant in ("writer", "reader"):
        queue.push(arrivals.request(tenant))
    assert take(queue).tenant == "reader"


def test_idleness_earns_no_credit() -> None:
    queue, arrivals = FairQueue(), Arrivals()
    busy = arrivals.request("busy")
    queue.push(busy)
    queue.push(arrivals.request("busy"))
    queue.charge_prefill(take(queue), 10_000)
    for _ in range(10):
        queue.push(arrivals.request("late"))
        queue.push(arrivals.request("busy"))
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
        queue.push(request)
    assert [take(queue), take(queue)] == [early, late]
    newcomer = arrivals.request("cog")
    queue.push(newcomer)
    queue.charge_prefill(early, 1000)
    queue.push_returning(late)
    queue.push_returning(early)
    assert [take(queue) for _ in range(3)] == [early, late, newcomer]


def test_requests_whose_adapter_is_not_admitted_block_nobody() -> None:
    queue, arrivals = FairQueue(), Arrivals()
    missing, present = adapter("missing"), adapter("present")
    stuck = [arrivals.request("acme", ref=missing), arrivals.request("bolt", PRIORITY, missing)]
    free = [arrivals.request("acme", ref=present), arrivals.request("acme"), arrivals.request("cog", FLEX)]
    for request in stuck + free:
        queue.push(request)
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
            queue.push(arrivals.request(f"t{number}", ref=ref))
    for number in range(20):
        queue.push(arrivals.request(f"t{number}"))
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
    queue.push(debtor)
    queue.charge_prefill(take(queue), 10**6)
    for number in range(9000):
        queue.push(arrivals.request(f"t{number}"))
        queue.charge_prefill(take(queue), 1)
    lane = queue._lanes[DEFAULT]
    assert len(lane.tenants) <= 2100
    queue.push(arrivals.request("fresh"))
    queue.push(arrivals.request("debtor"))
    queue.push(arrivals.request("fresh"))
    assert [take(queue).tenant for _ in range(3)] == ["fresh", "fresh", "debtor"]


@settings(max_examples=60, deadline=None)
@given(random=st.integers(0, 2**32).map(Random))
def test_nothing_is_lost_whatever_happens(random: Random) -> None:
    queue, arrivals = FairQueue(), Arrivals()
    refs = [None, adapter("a"), adapter("b")]
    waiting: set[Request] = set()
    running: list[Request] = []
    for _ in range(120):
        match random.randrange(5):
            case 0 | 1:
                request = arrivals.request(
                    random.choice("xyz"), random.choice(list(PriorityClass)), random.choice(refs)
                )
                queue.push(request, first=random.random() < 0.2)
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
                    running.append(picked)
                    queue.charge_decode([picked])
            case 3 if running:
                victim = running.pop()
                queue.push_returning(victim)
                waiting.add(victim)
            case 4 if waiting:
                gone = random.choice(sorted(waiting, key=lambda request: request.rank))
                queue.discard(gone)
                waiting.remove(gone)
        assert set(queue) == waiting
        assert len(queue) == len(waiting)
    for _ in range(len(waiting)):
        waiting.remove(take(queue))
    assert queue.pick(everyone) is None
