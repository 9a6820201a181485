"""Meter events arrive once: through lost answers, outages of a minute, a day and 36 days, and kill -9."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from db.session import EVERY_TENANT
from examples.stripe_double import API_KEY, Fault
from tests.billing.payments.conftest import START, Site
from tests.billing.payments.usage import events, use
from tests.support.killed_sender import INSTANTS
from tests.support.programs import end_killed

HOUR = timedelta(hours=1)
NINE = START.replace(minute=0)
EVENTS = "/v1/billing/meter_events"
SUMMARIES = "/v1/billing/meters/"


async def states(site: Site) -> list[str]:
    return [state for *_, state in await events(site.database)]


async def used(site: Site, cost: int = 100) -> None:
    """Usage of one hour, which is over."""
    await use(site.database, NINE, cost)
    site.travel(NINE + HOUR + timedelta(minutes=15))
    await site.planning.plan(site.now)


async def test_events_are_sent_with_the_hour_they_are_of(site: Site) -> None:
    await use(site.database, NINE + timedelta(minutes=45), 5)
    await use(site.database, NINE + HOUR, 7)
    site.travel(NINE + timedelta(hours=3))
    await site.meter()
    received = site.double.meters.received
    # The first began before the subscription did, and would not be billed with its own time.
    assert [one["value"] for one in received] == [5, 7]
    assert received[0]["timestamp"] == int(site.now.timestamp())
    assert received[1]["timestamp"] == int((NINE + HOUR).timestamp())
    assert await states(site) == ["sent", "sent"]


@pytest.mark.parametrize("kind", ["rate_limited", "error", "unreachable", "lost", "hangs"])
async def test_a_minute_of_trouble_costs_and_doubles_nothing(site: Site, kind: Any) -> None:
    await used(site)
    if kind == "hangs":
        site.gateway._http._timeout = 0.2
    site.double.fail(Fault(kind, path=EVENTS, times=3))
    for _ in range(4):
        await site.sending.send()
        site.wait(minutes=1)
    await site.sending.send()
    assert site.metered() == 100
    assert await states(site) == ["sent"]


async def test_while_the_provider_is_away_one_event_is_tried_at_a_time(site: Site) -> None:
    for number in range(1, 6):
        await use(site.database, NINE + number * HOUR, 10)
    site.travel(NINE + 10 * HOUR)
    await site.planning.plan(site.now)
    site.double.fail(Fault("unreachable", path=EVENTS, times=-1))
    before = len(site.double.requests)
    await site.sending.send()
    await site.sending.send()
    assert len(site.double.requests) - before == 1  # the pause is kept
    site.double.heal()
    site.wait(minutes=1)
    await site.sending.send()
    assert site.metered() == 50


@pytest.mark.parametrize("arrived", [True, False])
async def test_after_a_day_the_provider_is_asked_before_anything_is_sent_again(
    site: Site, arrived: bool
) -> None:
    await used(site)
    site.double.fail(Fault("lost" if arrived else "unreachable", path=EVENTS))
    await site.sending.send()
    site.double.fail(Fault("unreachable", times=-1))
    for _ in range(30):
        site.wait(hours=1)
        await site.sending.send()
    site.double.heal()
    site.wait(hours=1)
    before = len(site.double.requests)
    await site.sending.send()
    asked = [path for _, path in site.double.requests[before:]]
    assert asked[0].startswith(SUMMARIES)
    assert (EVENTS in asked) == (not arrived)
    assert site.metered() == 100
    assert await states(site) == ["sent"]


async def test_a_summary_is_not_believed_before_it_can_know(site: Site) -> None:
    """A sum that lags behind would say that nothing arrived."""
    await used(site)
    site.double.fail(Fault("lost", path=EVENTS))
    await site.sending.send()
    async with site.database.write(EVERY_TENANT) as session:  # as after a day of answers that were lost
        old = site.now - timedelta(hours=30)
        await session.execute(text("UPDATE meter_events SET first_attempt_at = :old"), {"old": old})
    site.double.meters.summary_lag = 600
    site.wait(minutes=2)
    await site.sending.send()
    assert await states(site) == ["pending"]
    site.wait(minutes=15)
    await site.sending.send()
    assert await states(site) == ["sent"]
    assert site.metered() == 100


async def test_a_sum_that_fits_neither_way_is_for_a_person(site: Site) -> None:
    await used(site)
    site.double.fail(Fault("lost", path=EVENTS))
    await site.sending.send()
    await site.gateway.meter(site.customer, 7, NINE + HOUR, "somebody else's")
    site.double.meters.received[0]["timestamp"] = int((NINE + HOUR).timestamp())
    async with site.database.write(EVERY_TENANT) as session:
        statement = "UPDATE meter_events SET first_attempt_at = :old, timestamp = :hour"
        values = {"old": site.now - timedelta(hours=30), "hour": NINE + HOUR}
        await session.execute(text(statement), values)
    site.wait(hours=1)
    await site.sending.send()
    assert await states(site) == ["manual"]
    assert site.metered() == 107


async def test_after_36_days_events_wait_for_a_person(site: Site) -> None:
    await used(site)
    site.double.fail(Fault("unreachable", times=-1))
    await site.sending.send()
    site.wait(days=36)
    site.double.heal()
    await use(site.database, site.now - 2 * HOUR, 50)
    await site.meter()
    assert await states(site) == ["manual", "sent"]
    assert site.metered() == 50


async def test_usage_of_a_month_that_is_invoiced_is_billed_with_the_next(site: Site) -> None:
    last = datetime(2027, 1, 31, 23, tzinfo=UTC)
    await use(site.database, last, 100)
    site.travel(last + timedelta(hours=1, minutes=15))  # the month's invoice is a draft still
    await site.meter()
    site.travel(datetime(2027, 2, 1, 5, tzinfo=UTC))
    await use(site.database, last, 23)  # recorded late
    await site.meter()
    times = [datetime.fromtimestamp(one["timestamp"], UTC) for one in site.double.meters.received]
    assert times == [last, site.now]
    site.travel(datetime(2027, 3, 2, tzinfo=UTC))
    invoices = site.double.books.all("invoice")
    assert len(invoices) == 2
    assert site.metered() == 123


async def test_an_event_that_may_have_arrived_before_the_month_ended_is_asked_for(site: Site) -> None:
    last = datetime(2027, 1, 31, 22, tzinfo=UTC)
    await use(site.database, last, 100)
    site.travel(datetime(2027, 1, 31, 23, 30, tzinfo=UTC))
    await site.planning.plan(site.now)
    site.double.fail(Fault("unreachable", path=EVENTS))
    await site.sending.send()
    site.travel(datetime(2027, 2, 1, 9, tzinfo=UTC))
    await site.sending.send()
    [received] = site.double.meters.received
    assert datetime.fromtimestamp(received["timestamp"], UTC) == site.now  # billed with February
    assert await states(site) == ["sent"]


async def test_what_is_refused_is_for_a_person_and_holds_nothing_up(site: Site) -> None:
    async with site.database.write(EVERY_TENANT) as session:
        await session.execute(text("UPDATE billing_accounts SET stripe_customer_id = 'cus_gone'"))
    await used(site)
    await use(site.database, NINE + HOUR, 1)
    site.travel(NINE + 4 * HOUR)
    await site.meter()
    assert await states(site) == ["manual", "manual"]
    async with site.database.read(EVERY_TENANT) as session:
        why = (await session.execute(text("SELECT error FROM meter_events LIMIT 1"))).scalar_one()
    assert "No such customer" in why


async def test_a_wrong_key_makes_nothing_manual(site: Site) -> None:
    await used(site)
    site.gateway._stripe._requestor._options.api_key = "sk_test_wrong"
    sent = await site.sending.send()
    assert sent.unavailable
    assert await states(site) == ["pending"]


@pytest.mark.parametrize("instant", INSTANTS)
async def test_a_sender_killed_at_any_instant_loses_and_doubles_nothing(
    instant: str, site: Site, database_url: str
) -> None:
    for number in range(1, 4):
        await use(site.database, NINE + number * HOUR, 10**number)
    site.travel(NINE + 5 * HOUR)
    await site.planning.plan(site.now)
    told = (database_url, site.double.url, API_KEY, instant, site.now.isoformat())
    await end_killed("tests.support.killed_sender", *told)
    assert len(site.double.meters.received) == (1 if instant == "claimed" else 2)
    site.wait(minutes=20)
    await site.sending.send()
    assert site.metered() == 1_110
    assert await states(site) == ["sent"] * 3


@pytest.mark.parametrize("seed", range(2))
async def test_whatever_fails_the_sum_is_the_ledgers(site: Site, seed: int) -> None:
    """Two weeks of usage, late records and reversals under faults drawn by a seed."""
    draw, ledger = random.Random(seed), 0
    for _ in range(30):
        for _ in range(draw.randint(0, 3)):
            cost = draw.randint(-20_000, 60_000)
            await use(site.database, site.now - draw.randint(1, 80) * HOUR, cost)
            ledger += cost
        if draw.random() < 0.5:
            kind: Any = draw.choice(["rate_limited", "error", "unreachable", "lost"])
            site.double.fail(Fault(kind, times=draw.randint(1, 4)))
        await site.meter()
        if draw.random() < 0.3:
            site.double.heal()
        site.wait(hours=draw.choice([1, 3, 26]) if draw.random() < 0.9 else 1)
    site.double.heal()
    for _ in range(200):  # each further attempt in its time
        if "pending" not in await states(site):
            break
        site.wait(minutes=20)
        await site.sending.send()
    rows = await events(site.database)
    month = START.replace(day=1, hour=0, minute=0)
    assert {state for *_, state in rows} <= {"sent", "credited"}
    assert all(hour >= month for hour, *_ in rows)
    async with site.database.read(EVERY_TENANT) as session:
        total = (await session.execute(text("SELECT sum(cost) FROM usage_rollup_hours"))).scalar_one()
    assert sum(value for _, _, value, _ in rows) == total == ledger
    assert site.metered() == sum(value for _, _, value, state in rows if state == "sent")
