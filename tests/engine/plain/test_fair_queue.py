"""The fair queue, request by request: order within a tenant, its counts, FLEX's line, who returns first."""

from __future__ import annotations

from engine.protocol import PriorityClass
from engine.request import Request, RequestState
from engine.scheduling.fairness import DECODE_COST, FairQueue
from tests.engine.plain.arrivals import Arrivals, everyone
from tests.engine.plain.harness import adapter

PRIORITY, DEFAULT, FLEX = PriorityClass


def take(queue: FairQueue) -> Request:
    request = queue.pick(everyone)
    assert request is not None
    queue.take(request)
    return request


def test_what_is_queued_first_comes_before_others_of_its_tenant_on_its_adapter() -> None:
    """Siblings of a choice, and requests that made way."""
    queue, arrivals = FairQueue(), Arrivals()
    ref = adapter("a")
    early, later = arrivals.request(ref=ref), arrivals.request(ref=ref)
    queue.push(later, 0.0)
    queue.push(early, 0.0, first=True)
    assert [take(queue), take(queue)] == [early, later]


def test_the_tokens_that_wait_are_those_of_the_requests_that_wait() -> None:
    queue, arrivals = FairQueue(), Arrivals()
    requests = [arrivals.request(prompt_len=length) for length in (5, 70, 9)]
    for request in requests:
        queue.push(request, 0.0)
    assert queue.num_tokens_waiting(DEFAULT) == 84
    queue.discard(requests[1])
    assert queue.num_tokens_waiting(DEFAULT) == 14
    take(queue)
    assert queue.num_tokens_waiting(DEFAULT) == 9


def test_tenants_that_wait_are_counted_while_they_have_requests() -> None:
    queue, arrivals = FairQueue(), Arrivals()
    for tenant, ref in (("a", None), ("a", adapter("x")), ("b", None)):
        queue.push(arrivals.request(tenant, ref=ref), 0.0)
    counts = [queue.num_tenants_waiting(DEFAULT)]
    for _ in range(3):
        take(queue)
        counts.append(queue.num_tenants_waiting(DEFAULT))
    assert sorted(counts, reverse=True) == counts
    assert (counts[0], counts[-1]) == (2, 0)


def test_the_floor_does_not_sink_when_a_tenant_served_less_is_taken_later() -> None:
    queue, arrivals = FairQueue(), Arrivals()
    on = adapter("loading")
    waits = arrivals.request("waits", ref=on)
    queue.push(waits, 0.0)
    much = arrivals.request("much")
    queue.push(much, 0.0)

    def without(ref: object) -> bool:
        return ref != on

    assert queue.pick(without) is much
    queue.take(much)
    queue.unpark()
    queue.charge_prefill(much, 900)
    again = arrivals.request("much")
    queue.push(again, 0.0)
    assert queue.pick(without) is again
    queue.take(again)
    queue.unpark()
    assert take(queue) is waits, "served nothing, and taken last"
    late = arrivals.request("late")
    queue.push(late, 0.0)
    assert late.tenant_share is not None
    assert late.tenant_share.served == 900


def test_flex_that_gets_its_turn_begins_with_the_class_that_was_served_less() -> None:
    queue, arrivals = FairQueue(flex_wait_s=10.0), Arrivals()
    for priority in PriorityClass:
        queue.push(arrivals.request(priority=priority), 0.0)
    queue.charge_rows([1600, 4000, 0])
    queue.take_turns(10.0)
    assert queue.flex_in_turn(everyone) is not None, "it waits for nobody who was served more"


def test_a_flex_request_waits_since_it_was_queued_last() -> None:
    queue, arrivals = FairQueue(), Arrivals()
    request = arrivals.request(priority=FLEX)
    queue.push(request, 0.0)
    assert queue.oldest_flex_wait(5.0) == 5.0
    take(queue)
    request.state = RequestState.RUNNING
    assert queue.oldest_flex_wait(5.0) == -1.0, "it waits no more"
    request.state = RequestState.WAITING
    queue.push_returning(request, 7.0)
    assert queue.oldest_flex_wait(9.0) == 2.0


def test_a_flex_request_that_came_back_does_not_wait_since_it_came_first() -> None:
    """It was taken and queued again between two looks."""
    queue, arrivals = FairQueue(), Arrivals()
    request = arrivals.request(priority=FLEX)
    queue.push(request, 0.0)
    take(queue)
    queue.push_returning(request, 7.0)
    assert queue.oldest_flex_wait(9.0) == 2.0


def test_requests_that_return_come_before_their_class_the_last_to_go_first() -> None:
    queue, arrivals = FairQueue(), Arrivals()
    first, second, new = arrivals.request("a"), arrivals.request("b"), arrivals.request("c")
    queue.push(new, 0.0)
    for request in (second, first):
        queue.push_returning(request, 0.0)
    assert queue.num_returning(DEFAULT) == 2
    assert [take(queue) for _ in range(3)] == [first, second, new]


def test_a_generated_token_costs_its_tenant_twice_a_prompts() -> None:
    queue, arrivals = FairQueue(), Arrivals()
    request = arrivals.request()
    queue.push(request, 0.0)
    take(queue)
    queue.charge_prefill(request, 7)
    queue.charge_decode([request, request])
    assert request.tenant_share is not None
    assert request.tenant_share.served == 7 + 2 * DECODE_COST == 11


def test_the_last_to_come_of_whoever_has_the_most_waiting() -> None:
    queue, arrivals = FairQueue(), Arrivals()
    few = [arrivals.request("few") for _ in range(2)]
    many = [arrivals.request("many", ref=ref) for ref in (None, adapter("x"), None)]
    for request in (*few, *many):
        queue.push(request, 0.0)
    assert queue.last_of_most_waiting(DEFAULT, 2) is many[-1]
    assert queue.last_of_most_waiting(DEFAULT, 3) is None
    many[-1].group.scheduled_at = 1.0  # it has run before
    assert queue.last_of_most_waiting(DEFAULT) is many[1]
