"""Homes of adapters: even, in proportion to weights, and moving no more than they must."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.demand import AdapterDemand
from routing.placement import MAX_CHANGES, Placement

ADAPTERS = [f"{number:064x}" for number in range(3000)]


def placement(*names: str) -> Placement:
    made = Placement(AdapterDemand())
    for name in names:
        made.join(name)
    return made


def fresh(live: dict[str, float], pins: dict[str, int] | None = None) -> Placement:
    """A placement that has seen nothing but these joins."""
    made = Placement(AdapterDemand())
    for name, weight in live.items():
        made.join(name, weight)
    for adapter, copies in (pins or {}).items():
        made.pin(adapter, copies)
    return made


def test_every_router_finds_the_same_homes_whatever_the_order_of_joins() -> None:
    one, other = placement("a", "b", "c", "d", "e"), placement("e", "c", "a", "d", "b")
    assert [one.order(adapter, 5) for adapter in ADAPTERS] == [
        other.order(adapter, 5) for adapter in ADAPTERS
    ]


def test_homes_are_spread_evenly() -> None:
    names = [f"engine-{number}" for number in range(8)]
    made = placement(*names)
    held = Counter(made.homes(adapter)[0] for adapter in ADAPTERS)
    assert set(held) == set(names)
    assert max(held.values()) < 1.25 * len(ADAPTERS) / 8
    assert min(held.values()) > 0.75 * len(ADAPTERS) / 8


def test_a_heavier_replica_gets_more_in_proportion() -> None:
    made = fresh({"a": 1.0, "b": 3.0})
    held = Counter(made.homes(adapter)[0] for adapter in ADAPTERS)
    assert 0.70 < held["b"] / len(ADAPTERS) < 0.80


@pytest.mark.parametrize("weight", [0.0, -1.0])
def test_a_weight_that_is_not_positive_is_an_error(weight: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        placement().join("a", weight)


def test_only_what_a_replica_held_moves_when_it_leaves_and_moves_back_when_it_returns() -> None:
    made = placement("a", "b", "c", "d", "e", "f")
    before = {adapter: made.order(adapter, 2) for adapter in ADAPTERS}
    made.leave("c")
    for adapter in ADAPTERS:
        first, second = before[adapter]
        expected = second if first == "c" else first
        assert made.homes(adapter) == (expected,), "its next home"
    made.join("c")
    assert {adapter: made.order(adapter, 2) for adapter in ADAPTERS} == before


def test_without_replicas_there_are_no_homes() -> None:
    made = placement()
    assert made.homes(ADAPTERS[0]) == ()
    assert made.would_hold("a", ADAPTERS[0])


def test_a_pinned_adapter_has_at_least_the_copies_asked_for() -> None:
    made = placement("a", "b", "c")
    made.pin(ADAPTERS[0], 2)
    assert len(made.homes(ADAPTERS[0])) == 2
    made.pin(ADAPTERS[0], 7)
    assert len(made.homes(ADAPTERS[0])) == 3, "no more than there are replicas"
    made.pin(ADAPTERS[0], 0)
    assert len(made.homes(ADAPTERS[0])) == 1


def test_a_thousand_replicas_are_looked_at_once_per_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    made = placement(*(f"engine-{number}" for number in range(1000)))
    computed = 0
    original = Placement._computed

    def counting(self: Placement, partition: int, length: int):  # type: ignore[no-untyped-def]
        nonlocal computed
        computed += 1
        return original(self, partition, length)

    monkeypatch.setattr(Placement, "_computed", counting)
    some = ADAPTERS[:50]
    for _ in range(20):
        for adapter in some:
            made.homes(adapter)
    assert computed <= len(some)
    for number in range(10):  # few orders contain any of these
        made.leave(f"engine-{number}")
    before = computed
    for adapter in some:
        made.homes(adapter)
    assert computed - before < len(some) / 4


@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans(), st.sampled_from([1.0, 2.5])), max_size=40),
    st.integers(1, 9),
)
def test_remembered_orders_are_those_of_a_placement_without_a_past(
    changes: list[tuple[str, bool, float]], count: int
) -> None:
    made, live = Placement(AdapterDemand()), {}
    some = ADAPTERS[:12]
    for name, joins, weight in changes:
        if joins and name not in live:
            live[name] = weight
            made.join(name, weight)
        elif not joins:
            live.pop(name, None)
            made.leave(name)
        expected = fresh(live)
        for adapter in some[:: 1 + len(live) % 3]:
            assert made.order(adapter, count) == expected.order(adapter, count)
    for adapter in some:
        assert made.order(adapter, count) == fresh(live).order(adapter, count)
        for newcomer in set("abcdefgh") - live.keys():
            joined = fresh(live | {newcomer: 1.0})
            assert made.would_hold(newcomer, adapter) == (newcomer in joined.homes(adapter))


def test_an_order_that_missed_many_changes_is_computed_anew() -> None:
    made = placement("a", "b", "c", "d", "e", "f")
    before = made.order(ADAPTERS[0], 4)
    for _ in range(MAX_CHANGES):
        made.leave("x")
        made.join("x")
        made.leave("x")
    made.join("y")
    assert made.order(ADAPTERS[0], 4) == fresh(dict.fromkeys("abcdefy", 1.0)).order(ADAPTERS[0], 4)
    made.leave("y")
    assert made.order(ADAPTERS[0], 4) == before
