"""What is planned to be metered: every micro-USD of every hour, once, whenever it is recorded."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from billing.payments.planning import MeterPlanning
from db.session import EVERY_TENANT, Database
from tests.billing.payments.usage import (
    TENANT,
    charge,
    events,
    make_tenant,
    prepaid,
    reverse_charge,
    use,
)

MONTH = datetime(2026, 11, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
NINE = datetime(2026, 11, 20, 9, tzinfo=UTC)
TEN = NINE + HOUR
NOON = datetime(2026, 11, 20, 12, 30, tzinfo=UTC)


@pytest.fixture
async def planning(database: Database) -> MeterPlanning:
    await make_tenant(database)
    async with database.write(EVERY_TENANT) as session:
        await session.execute(
            text(
                "INSERT INTO stripe_subscriptions "
                "(id, tenant_id, customer_id, status, metered_from, started_at) "
                "VALUES ('sub_a', :tenant, 'cus_a', 'active', :since, :since)"
            ),
            {"tenant": TENANT, "since": MONTH},
        )
    return MeterPlanning(database)


async def test_an_hour_is_planned_once_and_what_comes_late_is_the_next_number(
    database: Database, planning: MeterPlanning
) -> None:
    await use(database, NINE + timedelta(minutes=3), 100)
    await use(database, NINE + timedelta(minutes=59), 11)
    assert await planning.plan(NOON) == 1
    assert await planning.plan(NOON) == 0
    await use(database, NINE, 5)
    await charge(database, NINE, 7)
    assert await planning.plan(NOON) == 1
    assert await events(database) == [(NINE, 0, 111, "pending"), (NINE, 1, 12, "pending")]
    assert await planning.unplanned(NOON) == []


async def test_identifiers_say_what_they_stand_for(database: Database, planning: MeterPlanning) -> None:
    await use(database, NINE, 1)
    await planning.plan(NOON)
    async with database.read(EVERY_TENANT) as session:
        found = (await session.execute(text("SELECT identifier FROM meter_events"))).scalar_one()
    assert found == f"{TENANT}:2026-11-20T09:0"


async def test_an_hour_waits_until_it_is_over_and_settled(
    database: Database, planning: MeterPlanning
) -> None:
    await use(database, NINE, 1)
    assert await planning.plan(TEN + timedelta(minutes=9)) == 0
    assert await planning.plan(TEN + timedelta(minutes=10)) == 1


async def test_what_was_used_before_the_metering_began_is_not_metered(
    database: Database, planning: MeterPlanning
) -> None:
    await use(database, MONTH - HOUR, 100)
    await use(database, MONTH, 1)
    await make_tenant(database, "ten_b")
    await use(database, NINE, 50, "ten_b")  # not subscribed
    await planning.plan(NOON)
    assert await events(database) == [(MONTH, 0, 1, "pending")]


async def test_what_a_balance_paid_for_is_not_metered(database: Database, planning: MeterPlanning) -> None:
    await prepaid(database, NINE + timedelta(minutes=30), TEN + timedelta(minutes=30))
    await use(database, NINE + timedelta(minutes=29), 1)
    await use(database, NINE + timedelta(minutes=30), 10)
    await use(database, TEN + timedelta(minutes=29), 100)
    await use(database, TEN + timedelta(minutes=30), 1_000)
    await charge(database, NINE + timedelta(minutes=45), 10_000)
    await planning.plan(NOON)
    assert await events(database) == [(NINE, 0, 1, "pending"), (TEN, 0, 1_000, "pending")]


async def test_what_falls_is_planned_and_never_sent(database: Database, planning: MeterPlanning) -> None:
    """A meter takes nothing back; the invoice does."""
    await use(database, NINE, 50_000)
    await planning.plan(NOON)
    await use(database, NINE, -14_999)
    await planning.plan(NOON)
    await use(database, TEN, -5_001)
    await planning.plan(NOON)
    await use(database, TEN, -9_999)
    await planning.plan(NOON)
    states = [(value, state) for _, _, value, state in await events(database)]
    assert states == [(50_000, "pending"), (-14_999, "credited"), (-5_001, "credited"), (-9_999, "credited")]


async def test_a_charge_taken_back_falls_to_the_hour_it_was_taken_back_in(
    database: Database, planning: MeterPlanning
) -> None:
    await charge(database, NINE, 30_000)
    await planning.plan(NOON)
    await reverse_charge(database, TEN, NINE, 30_000)
    await planning.plan(NOON)
    assert await events(database) == [(NINE, 0, 30_000, "pending"), (TEN, 0, -30_000, "credited")]


async def test_two_that_plan_at_once_plan_once(database: Database, planning: MeterPlanning) -> None:
    for number in range(5):
        await use(database, NINE - number * HOUR, 10)
    planned = await asyncio.gather(*(planning.plan(NOON) for _ in range(4)))
    assert sum(planned) == 5
    assert await planning.unplanned(NOON) == []


async def test_a_short_look_leaves_older_hours_to_the_long_one(
    database: Database, planning: MeterPlanning
) -> None:
    await use(database, NINE - 10 * HOUR, 3)
    await use(database, NINE, 4)
    assert await planning.plan(NOON, since=NINE) == 1
    assert await planning.unplanned(NOON) == [(TENANT, NINE - 10 * HOUR, 3)]
    assert await planning.plan(NOON) == 1
