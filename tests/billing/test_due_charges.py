"""What a day's storage costs: the days' edges, and rounding, once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from billing.charges import byte_days, storage_cost
from billing.charges.due_charges import storage_charges

DAY = datetime(2026, 11, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)


def test_only_the_days_own_hours_count() -> None:
    assert byte_days([(24, DAY - 9 * HOUR, None)], DAY) == 24
    assert byte_days([(24, DAY + 6 * HOUR, None)], DAY) == 18
    assert byte_days([(24, DAY - HOUR, DAY + 6 * HOUR)], DAY) == 6
    assert byte_days([(24, DAY + 6 * HOUR, DAY + 90 * HOUR)], DAY) == 18
    assert byte_days([(24, DAY - 9 * HOUR, DAY - HOUR)], DAY) == 0, "gone before"
    assert byte_days([(24, DAY + 30 * HOUR, None)], DAY) == 0, "not there yet"


def test_what_is_not_of_the_day_takes_nothing_off() -> None:
    spans = [(24, DAY - 9 * HOUR, DAY - 5 * HOUR), (24, DAY, None)]
    assert byte_days(spans, DAY) == 24


def test_spans_are_added_before_they_are_rounded_up() -> None:
    spans = [(24, DAY + 6 * HOUR, DAY + 6.5 * HOUR)] * 3
    assert byte_days(spans, DAY) == 2, "one and a half"
    assert byte_days(spans[:2], DAY) == 1


def test_a_cost_is_rounded_up() -> None:
    assert storage_cost(10**9, 7) == 7
    assert storage_cost(10**9 + 1, 7) == 8
    assert storage_cost(0, 7) == 0


def stored(version: int, since: datetime, until: datetime | None = None, adapter: str = "adp_1") -> Any:
    return SimpleNamespace(
        tenant_id="tnt_1", adapter_id=adapter, version=version, size=10**9, since=since, until=until
    )


def test_each_version_of_an_adapter_is_a_charge_of_the_day_it_was_stored_on() -> None:
    price: Any = SimpleNamespace(id="prc_1", adapter_gb_day=1000)
    spans = [
        stored(1, DAY, DAY + 6 * HOUR),
        stored(1, DAY + 12 * HOUR),
        stored(2, DAY),
        stored(3, DAY + 48 * HOUR),
        stored(1, DAY, adapter="adp_2"),
    ]
    charges = storage_charges(spans, DAY, price)
    assert [(charge.reference, charge.quantity, charge.cost) for charge in charges] == [
        ("adp_1@1", 750_000_000, 750),
        ("adp_1@2", 10**9, 1000),
        ("adp_2@1", 10**9, 1000),
    ]
    assert charges[0].id == "storage:2026-11-30:adp_1@1"
    assert {charge.at for charge in charges} == {DAY + 24 * HOUR - timedelta(seconds=1)}, "within the day"
    assert {charge.price_id for charge in charges} == {"prc_1"}
