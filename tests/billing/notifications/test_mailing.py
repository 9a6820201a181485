"""Mail through a real SMTP server."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session
from sqlalchemy import text

from billing.notifications import events
from billing.notifications.delivering import Deliveries
from billing.notifications.errors import MailNotSent
from billing.notifications.events import EVENTS, SPEND_ALERT
from billing.notifications.mailing import Mailer
from billing.notifications.messages import Message, dollars, message
from billing.notifications.publishing import publish
from billing.notifications.sending import WebhookSender
from db.session import EVERY_TENANT, Database
from tenants.actors import OPERATOR
from tenants.models import Tenant
from tenants.service import AccountServices, account_services
from tests.billing.notifications.test_delivering import certificate
from tests.tenants.conftest import SECRET

HELLO = Message("Hello", "Plain text.\n", "<p>HTML.</p>")
SENDER = "Rootstock <billing@rootstock.example>"


class Mailbox:
    """Takes mail for everybody but `nobody@` and, for now, `later@`."""

    def __init__(self) -> None:
        self.mail: list[tuple[str, EmailMessage]] = []
        self.signed_in: list[str] = []

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address.startswith("nobody@"):
            return "550 no such mailbox"
        if address.startswith("later@"):
            return "451 try again later"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        assert isinstance(envelope.content, bytes)
        mail = message_from_bytes(envelope.content, policy=policy.default)
        assert isinstance(mail, EmailMessage)
        self.mail.append((envelope.rcpt_tos[0], mail))
        return "250 OK"


@asynccontextmanager
async def mail_server(box: Mailbox, **options: Any) -> AsyncIterator[int]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: SMTP(box, **options), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.fixture
def box() -> Mailbox:
    return Mailbox()


@pytest.fixture
async def port(box: Mailbox) -> AsyncIterator[int]:
    async with mail_server(box) as opened:
        yield opened


def mailer(port: int, **options: Any) -> Mailer:
    return Mailer("127.0.0.1", port, **({"sender": SENDER, "security": "none"} | options))


async def test_a_message_is_plain_and_html(box: Mailbox, port: int) -> None:
    await mailer(port).send("ann@acme.example", HELLO, "dlv_1")
    ((recipient, mail),) = box.mail
    assert recipient == "ann@acme.example"
    assert (mail["To"], mail["From"], mail["Subject"]) == ("ann@acme.example", SENDER, "Hello")
    assert mail["Message-ID"] == "<dlv_1@rootstock.example>"
    assert mail.get_body(("plain",)).get_content() == "Plain text.\r\n"  # type: ignore[union-attr]
    assert "HTML." in mail.get_body(("html",)).get_content()  # type: ignore[union-attr]


async def test_refusals_for_now_and_for_good(port: int) -> None:
    for address, for_good in (("nobody@acme.example", True), ("later@acme.example", False)):
        with pytest.raises(MailNotSent) as refused:
            await mailer(port).send(address, HELLO, "dlv_1")
        assert refused.value.for_good is for_good
    with pytest.raises(MailNotSent) as broken:
        await mailer(port).send("ann@acme.example\nBcc: all@acme.example", HELLO, "dlv_1")
    assert broken.value.for_good
    with pytest.raises(MailNotSent) as away:
        await mailer(1).send("ann@acme.example", HELLO, "dlv_1")
    assert not away.value.for_good


async def test_signing_in_over_tls(box: Mailbox, tmp_path: Path) -> None:
    server, trusted = certificate(tmp_path, "localhost")

    def signs_in(_: Any, __: Any, ___: Any, mechanism: str, data: Any) -> AuthResult:
        good = data.login == b"rootstock" and data.password == b"a word"
        return AuthResult(success=good, handled=False)

    options = {"tls_context": server, "require_starttls": True, "auth_required": True}
    async with mail_server(box, authenticator=signs_in, **options) as port:
        known = {"security": "starttls", "user": "rootstock"}

        def at(password: str, context: ssl.SSLContext | None) -> Mailer:
            told: dict[str, Any] = {"sender": SENDER, "password": password, "trusted": context}
            return Mailer("localhost", port, **told, **known)  # type: ignore[arg-type]

        await at("a word", trusted).send("ann@acme.example", HELLO, "dlv_1")
        for wrong in (at("another", trusted), at("a word", None), mailer(port)):
            with pytest.raises(MailNotSent) as refused:
                await wrong.send("ann@acme.example", HELLO, "dlv_2")
            assert "a word" not in str(refused.value)
    assert len(box.mail) == 1


async def test_who_is_mailed_about_money(
    database: Database, redis_client: redis.asyncio.Redis, box: Mailbox, port: int
) -> None:
    """The account's address, owners, and who settles what is paid, each once; nobody else."""
    accounts: AccountServices = account_services(database, redis_client, SECRET)
    tenant: Tenant = await accounts.tenants.create_tenant("acme <b>")
    for name, role in (("own", "owner"), ("bill", "billing"), ("dev", "developer"), ("left", "owner")):
        made = await accounts.users.create(tenant.id, f"{name}@acme.example", "a long password", role=role)
    await accounts.members.remove(tenant.id, made.user_id, OPERATOR)
    async with database.write(tenant.id) as session:
        await session.execute(
            text("INSERT INTO billing_accounts (tenant_id, email) VALUES (:id, 'bills@acme.example')"),
            {"id": tenant.id},
        )
        await publish(session, tenant.id, SPEND_ALERT, EVENTS[SPEND_ALERT].sample, key="one")
        await publish(
            session, tenant.id, events.ADAPTER_READY, EVENTS[events.ADAPTER_READY].sample, key="two"
        )
    assert await Deliveries(database, WebhookSender(), mailer(port)).deliver() == 3
    mailed = dict(box.mail)
    assert set(mailed) == {"bills@acme.example", "own@acme.example", "bill@acme.example"}
    words = mailed["own@acme.example"].get_body(("html",)).get_content()  # type: ignore[union-attr]
    assert "acme &lt;b&gt;" in words
    assert "$80.120345" in words


async def test_without_a_mail_server_nothing_waits(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    tenant = await account_services(database, redis_client, SECRET).tenants.create_tenant("acme")
    async with database.write(tenant.id) as session:
        facts = EVENTS[SPEND_ALERT].sample
        await publish(session, tenant.id, SPEND_ALERT, facts, key="one", recipients=["ann@acme.example"])
    deliveries = Deliveries(database, WebhookSender())
    assert await deliveries.deliver() == 1
    async with database.read(EVERY_TENANT) as session:
        found = (await session.execute(text("SELECT state, error FROM deliveries"))).one()
    assert tuple(found) == ("failed", "no mail server is set")


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS.keys())
def test_every_event_has_words(event: events.EventType) -> None:
    hostile = {"subject_prefix": "a\r\nBcc: all@acme.example"}
    words = message(event.name, "acme\n<script>", event.sample | hostile)  # type: ignore[operator]
    assert "\n" not in words.subject
    assert words.subject.startswith("a Bcc: all@acme.example ")
    assert "<script>" not in words.html


def test_dollars_are_exact() -> None:
    assert dollars(0) == "$0.00"
    assert dollars(1) == "$0.000001"
    assert dollars(1_500_000) == "$1.50"
    assert dollars(-12_345_670_000) == "-$12,345.67"
