"""Webhooks: only Stripe's own, each once, in any order; nothing is said to be taken that is not committed."""

from __future__ import annotations

import asyncio
import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import stripe
from sqlalchemy import text

from billing.payments.errors import BadSignature
from billing.payments.signatures import verify
from billing.payments.webhooks import WebhookReceiver
from db.errors import DatabaseUnavailable
from db.session import EVERY_TENANT, Database
from examples.stripe_double import Fault, StripeDouble
from examples.stripe_double.deliveries import signed
from tests.billing.payments.conftest import SECRET, Site
from tests.billing.payments.usage import TENANT

BODY = json.dumps({"id": "evt_1", "type": "x.y", "created": 1, "data": {"object": {"id": "o"}}}).encode()
NOW = 1_800_000_000.0
FEBRUARY = datetime(2027, 2, 1, 1, 30, tzinfo=UTC)


def check(header: str | None, body: bytes = BODY, *, now: float = NOW, secrets: Any = (SECRET,)) -> None:
    verify(header, body, secrets, now=now, tolerance=300)


def test_the_sdks_own_signatures_are_good() -> None:
    made = stripe.WebhookSignature.generate_signature_header(BODY.decode(), SECRET, int(NOW))
    check(made)
    assert made == signed(BODY, SECRET, NOW)


def test_while_the_secret_is_changed_either_is_good() -> None:
    header = signed(BODY, SECRET, NOW) + "," + signed(BODY, "whsec_new", NOW).partition(",")[2]
    check(header, secrets=("whsec_new",))
    check(header, secrets=(SECRET,))
    check(signed(BODY, "whsec_old", NOW), secrets=(SECRET, "whsec_old"))


@pytest.mark.parametrize("age", [-299, 0, 299])
def test_times_near_ours_are_good(age: float) -> None:
    check(signed(BODY, SECRET, NOW - age))


@pytest.mark.parametrize("age", [301, -301, 10**6, -(10**6)])
def test_times_of_the_past_and_of_the_future_are_refused(age: float) -> None:
    """Stripe's SDK lets those of the future pass."""
    with pytest.raises(BadSignature):
        check(signed(BODY, SECRET, NOW - age))


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "t=1800000000",
        "v1=00",
        "t=,v1=00",
        "t=-1,v1=00",
        "t=1e9,v1=00",
        "t=١٨٠٠٠٠٠٠٠٠,v1=00",
        "t=1800000000,v0=" + signed(BODY, SECRET, NOW).rpartition("=")[2],
        "t=1800000000,t=1800000000,v1=" + signed(BODY, SECRET, NOW).rpartition("=")[2],
        signed(BODY, "whsec_other", NOW),
        signed(BODY + b" ", SECRET, NOW),
        signed(BODY, SECRET, NOW).replace("t=1800000000", "t=1800000001"),
        "t=1800000000," + ",".join(["v1=00"] * 17),
        "t=1800000000,v1=é",
        "x" * 3000,
    ],
)
def test_anything_else_is_refused(header: str | None) -> None:
    with pytest.raises(BadSignature):
        check(header)


async def test_what_is_signed_and_no_event_is_refused(site: Site) -> None:
    for body in (b"", b"{}", b'{"id": 1}', b"\xff"):
        with pytest.raises(BadSignature):
            await site.receiver.receive(signed(body, SECRET), body)


async def taken(site: Site, event: dict[str, Any]) -> bool:
    body = json.dumps(event).encode()
    return await site.receiver.receive(signed(body, SECRET), body)


async def rows(database: Database) -> list[tuple[str, str]]:
    async with database.read(EVERY_TENANT) as session:
        found = await session.execute(text("SELECT type, state FROM stripe_events ORDER BY received_at"))
        return [tuple(row) for row in found]


async def test_an_event_told_many_times_at_once_is_taken_down_once(site: Site) -> None:
    event = site.double.books.events[0] | {"type": "invoice.paid"}
    assert sorted(await asyncio.gather(*(taken(site, event) for _ in range(8)))) == [False] * 7 + [True]
    assert await rows(site.database) == [("invoice.paid", "received")]


async def test_unknown_types_are_taken_down_and_left_alone(site: Site) -> None:
    await taken(site, site.double.books.events[0])  # customer.created
    assert await rows(site.database) == [("customer.created", "ignored")]
    assert await site.follow_ups.sweep() == 0


async def test_what_cannot_be_committed_is_not_taken(site: Site, settings: Any) -> None:
    away = WebhookReceiver(Database("postgresql+psycopg://nobody@127.0.0.1:1/none"), None, settings)
    body = json.dumps(site.double.books.events[0]).encode()
    with pytest.raises(DatabaseUnavailable):
        await away.receive(signed(body, SECRET), body)


async def a_month_unpaid(site: Site) -> None:
    """January's invoice, declined; its events are there to be told."""
    site.double.card(site.customer, works=False)
    site.travel(FEBRUARY)
    await site.asked(500)


@pytest.mark.parametrize("seed", range(6))
async def test_in_whatever_order_events_come_the_end_is_the_same(site: Site, seed: int) -> None:
    await a_month_unpaid(site)
    site.double.card(site.customer, works=True)
    site.travel(FEBRUARY + timedelta(days=3, hours=1))  # tried again, and paid
    events = [event for event in site.double.books.events if event["created"]]
    draw = random.Random(seed)
    told = events + draw.sample(events, len(events) // 2)
    draw.shuffle(told)
    for event in told:
        await taken(site, event)
        if draw.random() < 0.5:
            await site.follow_ups.sweep()
    while await site.follow_ups.sweep():
        pass
    assert await site.state() == ("active", "active")
    async with site.database.read(EVERY_TENANT) as session:
        invoices = (
            await session.execute(
                text("SELECT status, amount_paid FROM stripe_invoices WHERE amount_due > 0")
            )
        ).all()
    assert [tuple(row) for row in invoices] == [("paid", 500)]
    assert {state for _, state in await rows(site.database)} == {"done", "ignored"}


async def test_events_from_before_do_not_undo_what_is_known(site: Site) -> None:
    """An answer that was asked for early and comes late."""
    await a_month_unpaid(site)
    [invoice] = await site.gateway.open_invoices(site.customer)
    await site.dunning.record(invoice, site.now)
    assert await site.state() == ("grace", "grace")
    site.double.card(site.customer, works=True)
    site.double.routes.invoicing.pay(invoice.id)
    await site.dunning.record(await site.gateway.invoice(invoice.id), site.now)
    await site.dunning.record(invoice, site.now)
    assert await site.state() == ("active", "active")


@pytest.mark.parametrize("kind", ["rate_limited", "error", "unreachable"])
async def test_while_the_provider_is_away_events_wait(site: Site, kind: Any) -> None:
    await a_month_unpaid(site)
    for event in site.double.books.events:
        await taken(site, event)
    async with site.database.write(EVERY_TENANT) as session:  # taken down by a clock that does not travel
        await session.execute(text("UPDATE stripe_events SET next_attempt_at = :now"), {"now": site.now})
    site.double.fail(Fault(kind, times=-1))
    assert await site.follow_ups.sweep() == 0
    assert await site.state() == ("active", "active")
    site.double.heal()
    site.wait(minutes=1)
    assert await site.follow_ups.sweep() > 0
    assert await site.state() == ("grace", "grace")


async def test_two_that_act_on_an_event_at_once_act_once(site: Site) -> None:
    session, _ = await site.gateway.checkout(
        site.customer, 2500, {"tenant_id": TENANT, "purpose": "top_up"}, "https://us.example/", "k"
    )
    site.double.pay_checkout(session)
    event = site.double.books.events[-1]
    await taken(site, event)
    done = await asyncio.gather(*(site.follow_ups.follow_up(event["id"]) for _ in range(5)))
    assert sum(done) == 1
    assert await balance(site.database) == [("top_up", 25_000_000)]


async def balance(database: Database) -> list[tuple[str, int]]:
    async with database.read(EVERY_TENANT) as session:
        found = await session.execute(text("SELECT kind, amount FROM credits ORDER BY id"))
        return [(row[0], int(row[1])) for row in found]


async def test_a_top_up_counts_once_it_is_paid_and_its_refund_takes_it_back(site: Site) -> None:
    metadata = {"tenant_id": TENANT, "purpose": "top_up"}
    session, _ = await site.gateway.checkout(site.customer, 2500, metadata, "https://us.example/", "k")
    view = site.double.books.get(session, "checkout.session")
    site.double.books.emit("checkout.session.completed", view)  # completed, and not paid yet
    await taken(site, site.double.books.events[-1])
    await site.follow_ups.sweep()
    assert await balance(site.database) == []
    site.double.pay_checkout(session)
    for name in ("checkout.session.completed", "checkout.session.async_payment_succeeded"):
        site.double.books.emit(name, view)
        await taken(site, site.double.books.events[-1])
    await site.follow_ups.sweep()
    assert await balance(site.database) == [("top_up", 25_000_000)]
    payment = (await site.gateway.checkout_session(session)).payment_id
    assert payment is not None
    await site.gateway.refund(payment, 1000, "r")
    for name in ("refund.created", "refund.updated"):
        site.double.books.emit(name, site.double.books.all("refund")[0])
        await taken(site, site.double.books.events[-1])
    await site.follow_ups.sweep()
    assert await balance(site.database) == [("top_up", 25_000_000), ("refund", -10_000_000)]


async def test_payments_for_something_else_are_no_top_up(site: Site, double: StripeDouble) -> None:
    session, _ = await site.gateway.checkout(site.customer, 2500, {}, "https://us.example/", "k")
    double.pay_checkout(session)
    await taken(site, double.books.events[-1])
    await site.follow_ups.sweep()
    assert await balance(site.database) == []
    assert {state for _, state in await rows(site.database)} == {"done"}


async def test_a_subscription_cancelled_at_the_provider_is_made_again(site: Site) -> None:
    await site.gateway.cancel_subscription(site.double.books.all("subscription")[0]["id"])
    await taken(site, site.double.books.events[-1])
    await site.follow_ups.sweep()
    assert await site.customers.subscribe_all(site.now + timedelta(days=1)) == 1
    assert await site.customers.subscribe_all(site.now + timedelta(days=1)) == 0
    assert [one["status"] for one in site.double.books.all("subscription")] == ["active", "canceled"]


async def test_what_was_acted_on_long_ago_is_forgotten_and_what_was_not_is_kept(site: Site) -> None:
    states = ("done", "ignored", "failed", "received")
    async with site.database.write(EVERY_TENANT) as session:
        for age in (59, 61):
            for state in states:
                await session.execute(
                    text(
                        "INSERT INTO stripe_events (id, type, object_id, occurred_at, state, received_at) "
                        "VALUES (:id, 'x.y', 'o', :at, :state, :at)"
                    ),
                    {"id": f"{state} {age}", "at": site.now - timedelta(days=age), "state": state},
                )
    assert await site.follow_ups.forget_old() == 2
    async with site.database.read(EVERY_TENANT) as session:
        left = (await session.execute(text("SELECT id FROM stripe_events"))).scalars()
        assert set(left) == {f"{state} 59" for state in states} | {"failed 61", "received 61"}
