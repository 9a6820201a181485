"""From what is told in a transaction to endpoints that take it, refuse it, or never answer."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import openai
import pytest
import redis.asyncio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from billing.notifications.delivering import BACKOFF, LEASE, Deliveries
from billing.notifications.events import EVENTS, INVOICE_FINALIZED, PAYMENT_FAILED
from billing.notifications.publishing import GIVE_UP_AFTER, publish
from billing.notifications.sending import WebhookSender
from billing.notifications.service import WebhookService
from db.session import Database
from tenants.actors import OPERATOR
from tenants.models import Tenant
from tenants.outbound.errors import EndpointUnreachable
from tenants.service import account_services
from tests.support.hook_server import HookServer, hook_server
from tests.support.killed_telling import DELIVERING
from tests.support.programs import end_killed
from tests.support.waiting import eventually
from tests.tenants.conftest import SECRET

FACTS = {"invoice_id": "inv_1", "number": 7, "month": "2026-10", "total_cents": 1234}
SENDER = WebhookSender(http_allowed=True, private_allowed=True, timeout=5.0)


class Clock:
    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def hooks() -> AsyncIterator[HookServer]:
    async with hook_server() as server:
        yield server


@pytest.fixture
async def tenant(database: Database, redis_client: redis.asyncio.Redis) -> Tenant:
    return await account_services(database, redis_client, SECRET).tenants.create_tenant("acme")


@pytest.fixture
def webhooks(database: Database) -> WebhookService:
    return WebhookService(database, SENDER)


async def endpoint(webhooks: WebhookService, tenant: Tenant, url: str, *types: str) -> tuple[str, str]:
    """Its id and its secret."""
    wanted = list(types) or [INVOICE_FINALIZED]
    made, secret = await webhooks.create(tenant.id, OPERATOR, name="hook", url=url, event_types=wanted)
    return made.id, secret


async def happen(
    database: Database, tenant: Tenant, clock: Clock, key: str = "one", event: str = INVOICE_FINALIZED
) -> bool:
    async with database.write(tenant.id) as session:
        return await publish(session, tenant.id, event, FACTS, key=key, now=clock(), recipients=())


async def fail_after_telling(database: Database, tenant: Tenant) -> None:
    async with database.write(tenant.id) as session:
        await publish(session, tenant.id, INVOICE_FINALIZED, FACTS, key="x")
        raise ZeroDivisionError


async def states(webhooks: WebhookService, tenant: Tenant, endpoint_id: str) -> list[tuple[Any, ...]]:
    rows = await webhooks.deliveries(tenant.id, endpoint_id, after=None, limit=100, newest_first=False)
    return [(row.state, row.attempts, row.status_code) for row, _ in rows]


async def test_the_stock_client_verifies_what_is_delivered(
    database: Database, tenant: Tenant, webhooks: WebhookService, hooks: HookServer, clock: Clock
) -> None:
    _, secret = await endpoint(webhooks, tenant, hooks.url("/204?a=b"))
    await endpoint(webhooks, tenant, hooks.url("/200"), PAYMENT_FAILED)
    assert await happen(database, tenant, clock)
    assert not await happen(database, tenant, clock), "it is told already"
    deliveries = Deliveries(database, SENDER, clock=clock)
    assert await deliveries.any_due()
    assert await deliveries.deliver() == 1
    assert await deliveries.deliver() == 0
    (heard,) = hooks.heard
    assert heard.path == "/204?a=b"
    assert heard.headers["host"] == f"127.0.0.1:{hooks.port}"
    with openai.OpenAI(api_key="none") as client:
        event = client.webhooks.unwrap(heard.body, heard.headers, secret=secret)
        assert event.id == heard.headers["webhook-id"]
        assert event.type == INVOICE_FINALIZED  # type: ignore[comparison-overlap]
        with pytest.raises(openai.InvalidWebhookSignatureError):
            client.webhooks.unwrap(heard.body + b" ", heard.headers, secret=secret)
    assert json.loads(heard.body) == {
        "id": heard.headers["webhook-id"],
        "object": "event",
        "type": INVOICE_FINALIZED,
        "created_at": int(clock().timestamp()),
        "data": FACTS,
    }


async def test_what_is_rolled_back_is_not_told(
    database: Database, tenant: Tenant, webhooks: WebhookService, hooks: HookServer, clock: Clock
) -> None:
    await endpoint(webhooks, tenant, hooks.url("/200"))
    with pytest.raises(ZeroDivisionError):
        await fail_after_telling(database, tenant)
    assert await Deliveries(database, SENDER, clock=clock).deliver() == 0
    assert await happen(database, tenant, clock, "x"), "it happened after all"


@pytest.mark.parametrize("path", ["/500", "/redirect", "/slow", "/rude", "/400"])
async def test_what_is_not_taken_is_tried_again_with_patience_that_grows(
    database: Database,
    tenant: Tenant,
    webhooks: WebhookService,
    hooks: HookServer,
    clock: Clock,
    path: str,
) -> None:
    endpoint_id, _ = await endpoint(webhooks, tenant, hooks.url(path))
    await happen(database, tenant, clock)
    hasty = WebhookSender(http_allowed=True, private_allowed=True, timeout=1.0 if path == "/slow" else 5.0)
    deliveries = Deliveries(database, hasty, clock=clock)
    for attempt, seconds in enumerate(BACKOFF[:3], 1):
        assert await deliveries.deliver() == 1
        assert (await states(webhooks, tenant, endpoint_id))[0][:2] == ("pending", attempt)
        clock.now += timedelta(seconds=seconds - 1)
        assert await deliveries.deliver() == 0
        clock.now += timedelta(seconds=1)
    assert {heard.path for heard in hooks.heard} == {path}, "no redirect is followed"
    assert len({heard.headers["webhook-id"] for heard in hooks.heard}) == 1
    assert len({heard.headers["webhook-signature"] for heard in hooks.heard}) == len(hooks.heard) > 1


async def test_an_endpoint_that_takes_nothing_for_three_days_is_told_nothing_any_more(
    database: Database, tenant: Tenant, webhooks: WebhookService, hooks: HookServer, clock: Clock
) -> None:
    endpoint_id, _ = await endpoint(webhooks, tenant, hooks.url("/changing"))
    await endpoint(webhooks, tenant, hooks.url("/200"), "webhook_endpoint.disabled")
    await happen(database, tenant, clock)
    deliveries, began = Deliveries(database, SENDER, clock=clock), clock.now
    attempts = 0
    while (await webhooks.get(tenant.id, endpoint_id)).disabled_at is None:
        attempts += await deliveries.deliver()
        clock.now += timedelta(hours=2)
    assert GIVE_UP_AFTER - timedelta(hours=12) < clock.now - began <= GIVE_UP_AFTER + timedelta(hours=3)
    assert 8 <= attempts <= 20
    assert [state for state, *_ in await states(webhooks, tenant, endpoint_id)] == ["failed"]
    assert await deliveries.deliver() == 1, "the other endpoint is told of that"
    assert json.loads(hooks.heard[-1].body)["data"]["webhook_endpoint_id"] == endpoint_id
    assert await happen(database, tenant, clock, "later")
    assert await deliveries.deliver() == 0
    hooks.status = 200
    assert await webhooks.test(tenant.id, endpoint_id, OPERATOR, PAYMENT_FAILED) == 200
    assert (await webhooks.get(tenant.id, endpoint_id)).disabled_at is None, "it works again"
    (failed, _), _ = await webhooks.deliveries(
        tenant.id, endpoint_id, after=None, limit=9, newest_first=False
    )
    await webhooks.retry(tenant.id, endpoint_id, failed.id, OPERATOR)
    assert await deliveries.deliver() == 1
    assert await states(webhooks, tenant, endpoint_id) == [("delivered", 1, 200)] * 2, "it, and the test"


async def test_an_endpoint_that_says_it_is_gone_is_believed(
    database: Database, tenant: Tenant, webhooks: WebhookService, hooks: HookServer, clock: Clock
) -> None:
    endpoint_id, _ = await endpoint(webhooks, tenant, hooks.url("/410"))
    await happen(database, tenant, clock)
    await Deliveries(database, SENDER, clock=clock).deliver()
    assert (await webhooks.get(tenant.id, endpoint_id)).disabled_at is not None


async def test_who_delivers_and_dies_leaves_it_to_the_next(
    database: Database, tenant: Tenant, webhooks: WebhookService, hooks: HookServer, clock: Clock
) -> None:
    endpoint_id, _ = await endpoint(webhooks, tenant, hooks.url("/slow"))
    await happen(database, tenant, clock)
    deliveries = Deliveries(database, SENDER, clock=clock)
    dying = asyncio.create_task(deliveries.deliver())
    await eventually(lambda: bool(hooks.heard))
    assert await deliveries.deliver() == 0, "somebody has it"
    dying.cancel()
    await asyncio.wait([dying])
    await webhooks.update(tenant.id, endpoint_id, OPERATOR, url=hooks.url("/200"))
    clock.now += timedelta(seconds=61)
    assert await deliveries.deliver() == 1
    assert await states(webhooks, tenant, endpoint_id) == [("delivered", 2, 200)]


async def test_several_that_deliver_share_the_work(
    database: Database, tenant: Tenant, webhooks: WebhookService, hooks: HookServer, clock: Clock
) -> None:
    await endpoint(webhooks, tenant, hooks.url("/200"))
    for number in range(20):
        await happen(database, tenant, clock, str(number))
    deliveries = [Deliveries(database, SENDER, clock=clock) for _ in range(3)]
    taken = 0
    while share := sum(await asyncio.gather(*(one.deliver() for one in deliveries))):
        taken += share
    assert taken == 20
    assert len({heard.headers["webhook-id"] for heard in hooks.heard}) == len(hooks.heard) == 20


async def test_an_endpoint_with_much_to_hear_keeps_nobody_waiting(
    database: Database, tenant: Tenant, webhooks: WebhookService, hooks: HookServer, clock: Clock
) -> None:
    await endpoint(webhooks, tenant, hooks.url("/500"))
    for number in range(20):
        await happen(database, tenant, clock, str(number))
    await endpoint(webhooks, tenant, hooks.url("/200"), PAYMENT_FAILED)
    await happen(database, tenant, clock, "late", PAYMENT_FAILED)
    assert await Deliveries(database, SENDER, clock=clock).deliver(limit=8) == 5
    assert {heard.path for heard in hooks.heard} == {"/500", "/200"}


async def test_secrets_change_without_a_gap(
    database: Database, tenant: Tenant, webhooks: WebhookService, hooks: HookServer, clock: Clock
) -> None:
    endpoint_id, old = await endpoint(webhooks, tenant, hooks.url("/200"))
    _, new = await webhooks.rotate_secret(tenant.id, endpoint_id, OPERATOR, keep_old=True)
    deliveries = Deliveries(database, SENDER, clock=clock)
    with openai.OpenAI(api_key="none") as client:

        async def verifies(key: str, *secrets: str) -> None:
            await happen(database, tenant, clock, key)
            await deliveries.deliver()
            heard = hooks.heard[-1]
            heard.headers["webhook-timestamp"] = str(int(clock().timestamp()))
            for secret in (old, new):
                if secret in secrets:
                    client.webhooks.verify_signature(
                        heard.body, heard.headers, secret=secret, tolerance=10**6
                    )
                else:
                    with pytest.raises(openai.InvalidWebhookSignatureError):
                        client.webhooks.verify_signature(
                            heard.body, heard.headers, secret=secret, tolerance=10**6
                        )

        await verifies("both", old, new)
        clock.now += timedelta(hours=25)
        await verifies("new alone", new)
        _, newest = await webhooks.rotate_secret(tenant.id, endpoint_id, OPERATOR, keep_old=False)
        assert newest not in (old, new)
        await verifies("neither")


async def test_long_answers_are_not_read(hooks: HookServer) -> None:
    assert await SENDER.post(hooks.url("/endless"), {}, b"{}") == 200


async def test_private_addresses_are_not_asked(hooks: HookServer) -> None:
    careful = WebhookSender(http_allowed=True)
    for host in ("127.0.0.1", "localhost", "127.1"):
        with pytest.raises(EndpointUnreachable, match="public"):
            await careful.post(hooks.url("/200", host=host), {}, b"{}")
    with pytest.raises(EndpointUnreachable, match="https"):
        await WebhookSender(private_allowed=True).post(hooks.url("/200"), {}, b"{}")
    assert hooks.heard == []


def certificate(directory: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server of this name, and of those who trust it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = directory / "server.pem"
    pem.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pem)
    return server, ssl.create_default_context(cadata=made.public_bytes(serialization.Encoding.PEM).decode())


async def test_the_address_is_looked_at_once_and_the_certificate_is_the_names(tmp_path: Path) -> None:
    """Whoever answers for a name cannot say one address when it is looked at and another when it is asked."""
    server, trusted = certificate(tmp_path, "hooks.example")
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    async with hook_server(server) as hooks:
        sender = WebhookSender(private_allowed=True, resolve=resolve, trusted=trusted)
        url = hooks.url("/204", "https", "hooks.example")
        assert await sender.post(url, {}, b"{}") == 204
        assert asked == ["hooks.example"]
        assert hooks.heard[0].headers["host"] == f"hooks.example:{hooks.port}"
        with pytest.raises(EndpointUnreachable):
            await sender.post(hooks.url("/204", "https", "other.example"), {}, b"{}")
        strict = WebhookSender(private_allowed=True, resolve=resolve)
        with pytest.raises(EndpointUnreachable):
            await strict.post(url, {}, b"{}")
        assert len(hooks.heard) == 1


def test_samples_fit_into_a_notification() -> None:
    assert all(len(json.dumps(dict(event.sample))) < 4096 for event in EVENTS.values())


@pytest.mark.parametrize("instant", DELIVERING)
async def test_who_is_killed_while_it_delivers_loses_nothing_and_makes_no_second_event(
    database: Database,
    database_url: str,
    tenant: Tenant,
    webhooks: WebhookService,
    hooks: HookServer,
    clock: Clock,
    instant: str,
) -> None:
    """With SIGKILL, before the endpoint hears of it and after: then it hears of it again, by the same id."""
    await endpoint(webhooks, tenant, hooks.url("/204"))
    assert await happen(database, tenant, clock)
    await end_killed("tests.support.killed_telling", database_url, "redis://", instant)
    assert len(hooks.heard) == (1 if instant == "posted" else 0)
    deliveries = Deliveries(database, SENDER, clock=clock)
    assert await deliveries.deliver() == 0, "whoever took it may still be at it"
    clock.now = datetime.now(UTC) + timedelta(seconds=LEASE + 1)
    assert await deliveries.deliver() == 1
    assert await deliveries.deliver() == 0
    assert len(hooks.heard) == (2 if instant == "posted" else 1)
    assert len({heard.headers["webhook-id"] for heard in hooks.heard}) == 1
    assert len({heard.body for heard in hooks.heard}) == 1
