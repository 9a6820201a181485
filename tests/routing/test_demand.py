"""How many copies an adapter gets, and that they do not come and go."""

from __future__ import annotations

from routing.demand import AdapterDemand

ADAPTER = "a" * 64


def demand(rows: int = 40, **settings: int) -> AdapterDemand:
    made = AdapterDemand(**settings)
    made.rows_per_replica = rows  # a copy serves ten
    return made


def held(made: AdapterDemand, num_open: int, begin: float, seconds: float) -> None:
    """Keeps `num_open` requests of a second each open."""
    for second in range(int(seconds)):
        at = begin + second
        for _ in range(num_open):
            made.began(ADAPTER, at)
        for _ in range(num_open):
            made.ended(ADAPTER, at + 1.0)


def test_a_rare_adapter_has_one_copy() -> None:
    made = demand()
    assert made.copies(ADAPTER) == 1
    held(made, 1, 0.0, 100)
    assert made.copies(ADAPTER) == 1


def test_a_popular_adapter_gets_copies_by_its_open_requests() -> None:
    made = demand()
    held(made, 35, 0.0, 200)
    assert made.copies(ADAPTER) == 4


def test_a_burst_of_a_few_seconds_gets_none() -> None:
    made = demand()
    held(made, 35, 0.0, 4)
    assert made.copies(ADAPTER) == 1


def test_copies_go_only_when_half_of_them_would_do() -> None:
    made = demand()
    held(made, 35, 0.0, 200)
    held(made, 22, 200.0, 200)
    assert made.copies(ADAPTER) == 4, "three would do"
    held(made, 12, 400.0, 200)
    assert made.copies(ADAPTER) == 3
    held(made, 1, 600.0, 300)
    assert made.copies(ADAPTER) == 1


def test_demand_between_two_numbers_of_copies_changes_nothing() -> None:
    made = demand()
    held(made, 21, 0.0, 200)
    changes = 0
    before = made.copies(ADAPTER)
    for minute in range(20):
        held(made, 21 if minute % 2 else 19, 200.0 + 60 * minute, 60)
        changes += made.copies(ADAPTER) != before
        before = made.copies(ADAPTER)
    assert changes == 0


def test_requests_of_other_routers_count() -> None:
    made = demand()
    made.scale = 4.0
    held(made, 9, 0.0, 200)
    assert made.copies(ADAPTER) == 4


def test_memory_is_bounded_and_keeps_what_is_open() -> None:
    made = demand(max_tracked=100)
    made.began(ADAPTER, 0.0)
    for number in range(1000):
        made.began(f"{number:064x}", 1.0)
        made.ended(f"{number:064x}", 2.0)
        assert len(made) <= 100
    held(made, 35, 10.0, 200)
    assert made.copies(ADAPTER) > 1
    made.ended("never seen", 300.0)
