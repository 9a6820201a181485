"""A payment that failed: grace, suspension, and back; keys hear of it within a second, everywhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import httpx
import pytest
import redis.asyncio
from sqlalchemy import text

from api.app import create_app
from billing.invoices.accounts import BillingAccounts
from billing.payments.dunning import dunning_state
from billing.payments.errors import ProviderUnavailable
from billing.payments.service import PaymentService
from billing.payments.settings import StripeSettings
from billing.payments.webhooks import WebhookReceiver
from db.session import EVERY_TENANT
from examples.stripe_double import Fault
from tenants.actors import OPERATOR
from tenants.resolver import KeyResolver
from tenants.service import account_services
from tests.api.conftest import build
from tests.billing.payments.conftest import SECRET, Site
from tests.billing.payments.usage import TENANT
from tests.support.waiting import eventually
from tokenization.codec import TextCodec

KEY_SECRET = "a server's secret of enough length"
FEBRUARY = datetime(2027, 2, 1, 1, 30, tzinfo=UTC)
WEEK = timedelta(days=7)
DAY = timedelta(days=1)


def test_the_standing_follows_from_what_is_owed_and_the_time() -> None:
    failed = FEBRUARY
    assert dunning_state(None, WEEK, failed).state == "active"
    grace = dunning_state(failed, WEEK, failed)
    assert (grace.state, grace.grace_until) == ("grace", failed + WEEK)
    assert dunning_state(failed, WEEK, failed + WEEK - timedelta(seconds=1)).state == "grace"
    assert dunning_state(failed, WEEK, failed + WEEK).state == "suspended"
    assert dunning_state(failed, timedelta(0), failed).state == "suspended"


async def unpaid(site: Site) -> str:
    """January, declined, and we were told; the invoice's id."""
    site.double.card(site.customer, works=False)
    site.travel(FEBRUARY)
    invoice = await site.asked(500)
    await site.dunning.record(await site.gateway.invoice(invoice), site.now)
    return invoice


async def pay(site: Site, invoice: str) -> None:
    """In the portal, with another card."""
    site.double.card(site.customer, works=True)
    with site.double.books.lock:
        site.double.routes.invoicing.pay(invoice)


async def test_grace_suspension_payment_and_back(site: Site) -> None:
    invoice = await unpaid(site)
    assert await site.state() == ("grace", "grace")
    site.travel(FEBRUARY + WEEK - timedelta(minutes=1))
    await site.dunning.refresh_overdue(site.now)
    assert await site.state() == ("grace", "grace")
    site.travel(FEBRUARY + WEEK)
    await site.dunning.refresh_overdue(site.now)
    assert await site.state() == ("suspended", "suspended")
    await pay(site, invoice)
    await site.dunning.refresh_overdue(site.now)  # whether or not the webhook comes
    assert await site.state() == ("active", "active")
    async with site.database.read(EVERY_TENANT) as session:
        told = (
            await session.execute(text("SELECT type FROM notifications ORDER BY created_at, id"))
        ).scalars()
        assert list(told) == [
            *("payment.failed", "account.grace"),
            *("account.suspended", "account.restored"),
        ]
        logged = await session.execute(
            text("SELECT details ->> 'to' FROM audit_log WHERE type = 'billing_account.updated' ORDER BY seq")
        )
        assert list(logged.scalars()) == ["grace", "suspended", "active"]


async def test_nobody_is_suspended_before_the_provider_was_asked(site: Site) -> None:
    """The webhook of the payment got lost, and the provider is away when the time is up."""
    invoice = await unpaid(site)
    await pay(site, invoice)
    site.travel(FEBRUARY + WEEK + DAY)
    site.double.fail(Fault("unreachable", times=-1))
    with pytest.raises(ProviderUnavailable):
        await site.dunning.refresh_overdue(site.now)
    assert await site.state() == ("grace", "grace")
    site.double.heal()
    await site.dunning.refresh_overdue(site.now)
    assert await site.state() == ("active", "active")


async def test_a_failure_that_no_webhook_told_of_is_found(site: Site) -> None:
    site.double.card(site.customer, works=False)
    site.travel(FEBRUARY)
    await site.asked(500)
    assert await site.dunning.refresh_all(site.now) == 1
    assert await site.state() == ("grace", "grace")


async def test_what_the_provider_writes_off_is_owed_and_what_it_voids_is_not(site: Site) -> None:
    invoice = await unpaid(site)
    seen = await site.gateway.invoice(invoice)
    await site.dunning.record(replace(seen, status="uncollectible"), site.now)
    assert await site.state() == ("grace", "grace")
    site.double.routes.invoicing.void(invoice)
    await site.dunning.record(await site.gateway.invoice(invoice), site.now)
    assert await site.state() == ("active", "active")


async def test_a_second_failure_within_the_first_does_not_prolong_the_grace(site: Site) -> None:
    invoice = await unpaid(site)
    seen = await site.gateway.invoice(invoice)
    await site.dunning.record(replace(seen, id="in_second"), site.now + 3 * DAY)
    async with site.database.read(EVERY_TENANT) as session:
        until = (await session.execute(text("SELECT grace_until FROM billing_accounts"))).scalar_one()
    assert until == FEBRUARY + WEEK


# Over HTTP --------------------------------------------------------------------------------------------------


@dataclass
class Front:
    """Two processes' worth of API over one site."""

    apps: list[httpx.AsyncClient]
    inference: str
    admin: str


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
async def front(
    site: Site,
    codec: TextCodec,
    redis_client: redis.asyncio.Redis,
    settings: StripeSettings,
) -> AsyncIterator[Front]:
    accounts = account_services(site.database, redis_client, KEY_SECRET)
    async with site.database.write(EVERY_TENANT) as session:
        statement = "INSERT INTO projects (id, tenant_id, name, is_default) VALUES ('proj_a', :t, 'd', true)"
        await session.execute(text(statement), {"t": TENANT})
    inference = await accounts.keys.create(TENANT, "inference", OPERATOR)
    admin = await accounts.keys.create(TENANT, "admin", OPERATOR, kind="admin")
    payments = PaymentService(
        site.database,
        site.gateway,
        return_url="https://us.example/",
        accounts=BillingAccounts(site.database, redis_client),
        webhooks=WebhookReceiver(site.database, None, settings),
    )
    resolvers = [KeyResolver(site.database, redis_client, KEY_SECRET) for _ in range(2)]
    clients = []
    for resolver in resolvers:
        await resolver.start()
        services = replace(build(codec).services, keys=resolver, payments=payments)
        transport = httpx.ASGITransport(create_app(services), raise_app_exceptions=False)
        clients.append(httpx.AsyncClient(transport=transport, base_url="http://test"))
    await eventually(lambda: all(resolver.listening for resolver in resolvers))
    yield Front(clients, inference.plaintext, admin.plaintext)
    for client in clients:
        await client.aclose()
    for resolver in resolvers:
        await resolver.close()


async def test_keys_are_refused_within_a_second_and_the_console_side_goes_on(
    site: Site, front: Front
) -> None:
    async def answered(status: int) -> bool:
        answers = [await app.get("/v1/models", headers=bearer(front.inference)) for app in front.apps]
        return all(answer.status_code == status for answer in answers)

    assert await answered(200)
    invoice = await unpaid(site)
    assert await answered(200)  # grace
    site.travel(FEBRUARY + WEEK)
    await site.dunning.refresh_overdue(site.now)
    assert await eventually(lambda: answered(429), 5) < 1
    refused = await front.apps[0].get("/v1/models", headers=bearer(front.inference))
    assert refused.json()["error"]["code"] == "insufficient_quota"
    assert "payment failed" in refused.json()["error"]["message"]
    assert refused.headers["x-should-retry"] == "false"
    shown = (await front.apps[0].get("/v1/organization/billing", headers=bearer(front.admin))).json()
    assert (shown["state"], shown["open_invoices"][0]["amount_remaining_cents"]) == ("suspended", 500)
    portal = await front.apps[0].post("/v1/organization/billing/portal", headers=bearer(front.admin))
    assert portal.json()["url"].startswith("https://billing.")
    await pay(site, invoice)
    await site.dunning.refresh_overdue(site.now)
    assert await eventually(lambda: answered(200), 5) < 1


async def test_a_webhook_over_http_is_taken_once(site: Site, front: Front) -> None:
    endpoint = site.double.endpoint("http://test/webhooks/stripe", SECRET)
    statuses = await site.double.deliveries.deliver(front.apps[0], twice=True)
    assert statuses
    assert set(statuses) == {200}
    async with site.database.read(EVERY_TENANT) as session:
        count = (await session.execute(text("SELECT count(*) FROM stripe_events"))).scalar_one()
    assert count == len(endpoint.delivered) == len(site.double.books.events)
    endpoint.secret = "whsec_somebody_elses"
    site.double.books.emit("invoice.paid", {"id": "in_forged"})
    assert await site.double.deliveries.deliver(front.apps[0]) == [400]


async def test_top_ups_are_asked_for_in_cents(site: Site, front: Front) -> None:
    url, headers = "/v1/organization/billing/top_ups", bearer(front.admin)
    made = await front.apps[0].post(url, headers=headers, json={"amount": 2500})
    assert made.status_code == 200
    session = site.double.books.get(made.json()["id"], "checkout.session")
    assert session["metadata"] == {"tenant_id": TENANT, "purpose": "top_up"}
    for amount in (499, 1_000_001, 25.5, "2500"):
        refused = await front.apps[0].post(url, headers=headers, json={"amount": amount})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "amount")
    site.double.fail(Fault("unreachable", times=-1))
    away = await front.apps[0].post(url, headers=headers, json={"amount": 2500})
    assert (away.status_code, away.headers["x-should-retry"]) == (503, "true")


async def test_without_a_provider_there_are_invoices_only(
    site: Site, codec: TextCodec, front: Front, redis_client: redis.asyncio.Redis
) -> None:
    resolver = KeyResolver(site.database, redis_client, KEY_SECRET)
    await resolver.start()
    alone = PaymentService(site.database, None, return_url="")
    app = create_app(replace(build(codec).services, keys=resolver, payments=alone))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        shown = await client.get("/v1/organization/billing", headers=bearer(front.admin))
        assert shown.json()["provider"] is None
        refused = await client.post("/v1/organization/billing/portal", headers=bearer(front.admin))
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "payments_not_configured")
        assert (await client.post("/webhooks/stripe", content=b"{}")).status_code == 404
    await resolver.close()


async def test_what_invoices_name_is_changed_over_http(
    site: Site, front: Front, redis_client: redis.asyncio.Redis
) -> None:
    url, headers, app = "/v1/organization/billing", bearer(front.admin), front.apps[0]
    changes = {"name": "Acme GmbH", "email": "pay@acme.example", "address": "1 Road\nTown", "country": "DE"}
    made = await app.post(url, headers=headers, json=changes)
    assert made.status_code == 200, made.text
    assert {name: made.json()[name] for name in changes} == changes
    await site.customers.push_details()
    assert site.double.books.get(site.customer, "customer")["name"] == "Acme GmbH"
    for body, field in (
        ({"country": "Germany"}, "country"),
        ({"country": "de"}, "country"),
        ({"email": "nobody"}, "email"),
        ({"tax_id": 5}, "tax_id"),
        ({"mode": "free"}, "mode"),
    ):
        refused = await app.post(url, headers=headers, json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, field), refused.text
    assert (await app.post(url, headers=headers, json={"mode": "postpaid"})).json()["mode"] == "postpaid"
    # At an empty balance every request would be refused: that has to be meant, and can be undone.
    refused = await app.post(url, headers=headers, json={"mode": "prepaid", "name": "Other"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "balance_empty")
    assert (await app.get(url, headers=headers)).json()["name"] == "Acme GmbH", "all of it or nothing"
    confirmed = await app.post(url, headers=headers, json={"mode": "prepaid", "confirm": True})
    assert confirmed.json()["mode"] == "prepaid"
    assert (await app.post(url, headers=headers, json={"mode": "postpaid"})).json()["mode"] == "postpaid"
    accounts = BillingAccounts(site.database, redis_client)
    await accounts.set_mode(TENANT, "prepaid", OPERATOR, now=datetime.now(UTC))
    refused = await app.post(url, headers=headers, json={"mode": "postpaid"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "mode_not_allowed")
    assert refused.json()["error"]["param"] == "mode"
    shown = (await app.get(url, headers=headers)).json()
    assert (shown["mode"], shown["name"]) == ("prepaid", "Acme GmbH")
