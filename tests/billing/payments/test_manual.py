"""What waits for a person: listed, billed now or left, once, and logged; and the worker's rounds."""

from __future__ import annotations

from datetime import timedelta

import pytest
import redis.asyncio
from sqlalchemy import text

from api.metrics.payments import PaymentsCollector
from billing.payments.errors import ManualEntryNotFound, ProviderUnavailable
from billing.payments.manual import ManualQueue
from billing.payments.rounds import PaymentRounds
from billing.payments.settings import StripeSettings
from db.session import EVERY_TENANT
from examples.stripe_double import Fault
from tests.billing.payments.conftest import START, Site
from tests.billing.payments.usage import TENANT, events, make_tenant, use

HOUR = timedelta(hours=1)


async def forgotten(site: Site) -> str:
    """An event too old for the provider; its identifier."""
    await use(site.database, START + HOUR, 100)
    site.wait(hours=3)
    await site.planning.plan(site.now)
    site.wait(days=36)
    await site.sending.send()
    [entry] = await ManualQueue(site.database).list()
    assert (entry.tenant_id, entry.amount, entry.hour) == (TENANT, 100, START.replace(minute=0) + HOUR)
    assert "older" in entry.why
    return entry.id


async def states(site: Site) -> list[str]:
    return [state for *_, state in await events(site.database)]


async def logged(site: Site) -> list[str]:
    async with site.database.read(EVERY_TENANT) as session:
        query = "SELECT details ->> 'state' FROM audit_log WHERE type = 'meter_event.settled'"
        return list((await session.execute(text(query))).scalars())


async def test_an_entry_is_billed_with_the_present_time(site: Site) -> None:
    entry, queue = await forgotten(site), ManualQueue(site.database)
    site.double.fail(Fault("lost", path="/v1/billing/meter_events"))
    with pytest.raises(ProviderUnavailable):
        await queue.send(entry, site.gateway, site.now)
    assert await states(site) == ["manual"]
    await queue.send(entry, site.gateway, site.now)
    assert await states(site) == ["sent"]
    assert site.metered() == 100
    assert await logged(site) == ["sent"]
    with pytest.raises(ManualEntryNotFound):
        await queue.send(entry, site.gateway, site.now)


async def test_an_entry_that_is_left_is_planned_never_again(site: Site) -> None:
    entry, queue = await forgotten(site), ManualQueue(site.database)
    await queue.waive(entry, "paid by wire", site.now)
    assert await queue.list() == []
    assert await site.planning.plan(site.now) == 0
    assert (site.metered(), await states(site), await logged(site)) == (0, ["waived"], ["waived"])


async def test_what_waits_is_counted_among_the_metrics(site: Site) -> None:
    await forgotten(site)
    collector = PaymentsCollector(site.database)
    await collector.refresh()
    [metric] = collector.collect()
    assert {sample.labels["state"]: sample.value for sample in metric.samples} == {"pending": 0, "manual": 1}


async def test_a_round_subscribes_meters_and_moves_standings(
    site: Site, redis_client: redis.asyncio.Redis, settings: StripeSettings
) -> None:
    await make_tenant(site.database, "ten_b")
    rounds = PaymentRounds(site.database, redis_client, site.gateway, settings)
    rounds.sending = site.sending
    await rounds.meter(site.now)
    await use(site.database, site.now + HOUR, 3_000_000, "ten_b")
    site.wait(hours=4)
    await rounds.meter(site.now)
    [received] = site.double.meters.received
    customer = site.double.books.get(received["customer"], "customer")
    assert customer["metadata"] == {"tenant_id": "ten_b"}
    site.double.card(customer["id"], works=False)
    site.travel(START.replace(month=2, day=1, hour=2, minute=20))
    site.customer = customer["id"]
    await site.asked(300)
    await rounds.check_payments(site.now)  # in the minute of the long look: no webhook was needed
    async with site.database.read(EVERY_TENANT) as session:
        found = await session.execute(text("SELECT tenant_id, state FROM billing_accounts ORDER BY 1"))
        assert [tuple(row) for row in found] == [(TENANT, "active"), ("ten_b", "grace")]


async def test_a_provider_that_is_away_fails_no_round(
    site: Site, redis_client: redis.asyncio.Redis, settings: StripeSettings
) -> None:
    await make_tenant(site.database, "ten_b")
    rounds = PaymentRounds(site.database, redis_client, site.gateway, settings)
    site.double.fail(Fault("unreachable", times=-1))
    await rounds.meter(site.now)
    await rounds.check_payments(site.now.replace(minute=20))
    await rounds.follow_up()
    site.double.heal()
    await rounds.meter(site.now)
    assert len(site.double.books.all("subscription")) == 2


async def test_who_died_between_making_a_customer_and_writing_it_down_makes_no_second(site: Site) -> None:
    async with site.database.write(EVERY_TENANT) as session:
        await session.execute(
            text("UPDATE billing_accounts SET stripe_customer_id = NULL, stripe_subscription_id = NULL")
        )
        await session.execute(text("DELETE FROM stripe_subscriptions"))
    site.wait(days=2)  # the keys of idempotency are forgotten
    made = await site.customers.subscribe(TENANT, site.now)
    assert made.customer_id == site.customer
    assert len(site.double.books.all("customer")) == len(site.double.books.all("subscription")) == 1


async def test_a_tenant_that_is_refused_keeps_no_other_waiting(site: Site) -> None:
    for tenant in ("ten_b", "ten_c"):
        await make_tenant(site.database, tenant)
    async with site.database.write(EVERY_TENANT) as session:
        statement = "INSERT INTO billing_accounts (tenant_id, email) VALUES ('ten_b', 'nowhere')"
        await session.execute(text(statement))
    assert await site.customers.subscribe_all(site.now) == 1
    assert await site.customers.subscribe_all(site.now) == 0
    assert len(site.double.books.all("subscription")) == 2
