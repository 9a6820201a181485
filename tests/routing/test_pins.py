"""Where adapters are pinned: on their homes, as replicas come and go."""

from __future__ import annotations

from engine.protocol import AdapterRef
from routing.demand import AdapterDemand
from routing.pins import PINNED_COPIES, PinnedAdapters
from routing.placement import Placement

ADAPTER = AdapterRef("a" * 64, 8)


def pins(*replicas: str) -> tuple[PinnedAdapters, Placement]:
    placement = Placement(AdapterDemand())
    for name in replicas:
        placement.join(name)
    return PinnedAdapters(placement), placement


def test_an_adapter_is_pinned_on_two_homes_and_each_time_it_is_asked_for() -> None:
    made, placement = pins("a", "b", "c")
    homes = placement.order(ADAPTER.digest, PINNED_COPIES)
    expected = sorted((name, ADAPTER, True) for name in homes)
    assert sorted(made.set(ADAPTER, True)) == expected
    assert sorted(made.set(ADAPTER, True)) == expected, "a message may have been lost"
    assert list(made.moved()) == []


def test_pins_follow_the_homes() -> None:
    made, placement = pins("a", "b", "c")
    made.set(ADAPTER, True)
    first, second, third = placement.order(ADAPTER.digest, 3)
    placement.leave(first)
    made.forget(first)
    assert list(made.moved()) == [(third, ADAPTER, True)]
    placement.join(first)
    assert list(made.moved()) == [(first, ADAPTER, True), (third, ADAPTER, False)]
    assert sorted(made.set(ADAPTER, False)) == sorted((name, ADAPTER, False) for name in (first, second))
    assert list(made.moved()) == []
    assert len(placement.homes(ADAPTER.digest)) == 1


def test_a_process_unpins_what_another_has_pinned() -> None:
    made, placement = pins("a", "b", "c")
    homes = placement.order(ADAPTER.digest, PINNED_COPIES)
    assert sorted(made.set(ADAPTER, False)) == sorted((name, ADAPTER, False) for name in homes)


def test_without_replicas_nothing_is_sent_until_one_joins() -> None:
    made, placement = pins()
    assert made.set(ADAPTER, True) == []
    placement.join("a")
    assert list(made.moved()) == [("a", ADAPTER, True)]
