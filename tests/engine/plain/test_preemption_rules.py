"""The rules of preemption by themselves: which requests make way, and for how long they are kept."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from engine.protocol import PriorityClass
from engine.request import CLASS_ORDER, Request, TenantShare
from engine.scheduling.preemption import Preemption, is_protected, protect
from tests.engine.plain.arrivals import Arrivals

PRIORITY, DEFAULT, FLEX = PriorityClass


class House:
    """Requests in the batch, by tenant and class."""

    def __init__(self, *, priority_is_ahead: bool = False) -> None:
        self.arrivals = Arrivals()
        self.tenant_shares: dict[tuple[str, PriorityClass], TenantShare] = {}
        self.requests: list[Request] = []
        self.queue = SimpleNamespace(priority_is_ahead=priority_is_ahead)

    def waits(self, tenant: str = "new", priority: PriorityClass = DEFAULT) -> Request:
        request = self.arrivals.request(tenant, priority)
        request.tenant_share = self.tenant_shares.setdefault((tenant, priority), TenantShare())
        return request

    def runs(self, tenant: str, number: int = 1, priority: PriorityClass = DEFAULT) -> list[Request]:
        entered = [self.waits(tenant, priority) for _ in range(number)]
        self.tenant_shares[tenant, priority].num_running += number
        self.requests = sorted([*self.requests, *entered], key=lambda request: request.rank)
        return entered

    @property
    def preemption(self) -> Preemption:
        rows = [sum(one.rank[0] == order for one in self.requests) for order in CLASS_ORDER.values()]
        most = [0] * len(CLASS_ORDER)
        for (_, priority), tenant_share in self.tenant_shares.items():
            order = CLASS_ORDER[priority]
            most[order] = max(most[order], tenant_share.num_running)
        running = SimpleNamespace(requests=self.requests, num_rows=rows, most_rows=most)
        return Preemption(self.queue, running)  # type: ignore[arg-type]

    def victims(self, request: Request) -> list[Request]:
        return list(self.preemption.victims(request))


@pytest.mark.parametrize(
    ("own", "others", "claims"),
    [
        (0, 2, False),  # it would have one, the other keeps two
        (0, 3, True),
        (1, 3, False),
        (1, 4, True),
        (3, 6, False),  # of four of its own, the other keeps six
        (3, 7, True),
        (5, 9, False),
        (5, 10, True),
    ],
)
def test_a_tenant_keeps_half_as_many_rows_again_as_another_would_have(
    own: int, others: int, claims: bool
) -> None:
    house = House()
    house.runs("new", own) if own else None
    rows = house.runs("greedy", others)
    request = house.waits()
    assert house.preemption.may_preempt(request) is claims
    # Nobody leaves meanwhile: all that the greedy tenant has are named, the last first.
    assert house.victims(request) == (rows[::-1] if claims else [])


def test_a_tenant_gives_rows_until_it_has_no_more_than_it_may_keep() -> None:
    house = House()
    rows = house.runs("greedy", 5)
    gone = []
    for victim in house.preemption.victims(house.waits()):
        gone.append(victim)
        house.tenant_shares["greedy", DEFAULT].num_running -= 1
    assert gone == rows[:1:-1]


def test_the_tenant_with_the_most_rows_gives_the_first() -> None:
    house = House()
    some, most = house.runs("some", 4), house.runs("most", 5)
    assert house.victims(house.waits()) == [*most[::-1], *some[::-1]]


def test_priority_that_is_ahead_takes_of_flex_and_not_of_default() -> None:
    for is_ahead in (False, True):
        house = House(priority_is_ahead=is_ahead)
        default, flex = house.runs("d"), house.runs("f", priority=FLEX)
        expected = flex if is_ahead else [*flex, *default]
        assert house.victims(house.waits(priority=PRIORITY)) == expected


def test_priority_claims_unless_it_is_ahead_and_flex_never_does() -> None:
    house = House()
    house.runs("d")
    assert house.preemption.may_preempt(house.waits(priority=PRIORITY))
    assert not house.preemption.may_preempt(house.waits(priority=DEFAULT)), "nobody is below it"
    house.runs("f", priority=FLEX)
    assert house.preemption.may_preempt(house.waits(priority=DEFAULT))
    assert not house.preemption.may_preempt(house.waits(priority=FLEX))
    ahead = House(priority_is_ahead=True)
    ahead.runs("d")
    assert not ahead.preemption.may_preempt(ahead.waits(priority=PRIORITY))


def test_equals_and_those_above_do_not_make_way() -> None:
    house = House()
    house.runs("p", priority=PRIORITY)
    house.runs("d")
    assert house.victims(house.waits()) == []
    assert house.victims(house.waits(priority=FLEX)) == []


def test_a_request_that_made_way_is_left_alone_for_twice_as_long_each_time() -> None:
    request = Arrivals().request(prompt_len=100)
    assert not is_protected(request)
    kept = []
    for _ in range(14):
        protect(request)
        kept.append(request.protected_until - 100)
    assert kept == [16 << doublings for doublings in range(13)] + [16 << 12]
    assert is_protected(request)
    request.total_len = request.protected_until
    assert not is_protected(request), "it has gained enough"


def test_a_request_that_is_left_alone_is_no_victim_of_a_higher_class() -> None:
    house = House()
    first, second = house.runs("f", 2, FLEX)
    protect(second)
    assert house.victims(house.waits()) == [first]


def test_protection_is_never_shortened() -> None:
    request = Arrivals().request(prompt_len=10)
    request.protected_until = 1000
    protect(request)
    assert request.protected_until == 1000


@pytest.mark.parametrize("factor", [1.0, 3.0, 10.0])
def test_tenants_that_other_engines_serve_alike_take_rows_as_on_one_engine(factor: float) -> None:
    house = House()
    many = house.runs("noisy", 3)
    request = house.waits("late")
    for share in house.tenant_shares.values():
        share.cost_factor = factor
    assert house.preemption.may_preempt(request)
    assert house.victims(request)[0] is many[-1]


def test_a_tenant_takes_rows_of_one_that_other_engines_serve_as_much() -> None:
    """Not of one with more rows that is served here alone."""
    house = House()
    here, alike = house.runs("here", 9), house.runs("alike", 8)
    request = house.waits("late")
    for tenant in ("alike", "late"):
        house.tenant_shares[tenant, DEFAULT].cost_factor = 10.0
    victims = house.victims(request)
    assert victims == alike[::-1]
    assert not set(victims) & set(here)


def test_a_tenant_that_other_engines_serve_does_not_preempt_where_it_is_owed_nothing() -> None:
    house = House()
    house.runs("here", 9)
    request = house.waits("late")
    house.tenant_shares["late", DEFAULT].cost_factor = 10.0
    assert not house.preemption.may_preempt(request)
    assert not house.victims(request)
