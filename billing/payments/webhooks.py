"""Receives the payment provider's webhooks, stores each event once, and handles it later.

Storing an event is one row by its id, so a repeated event is stored once. Handling it reads the object from
the provider as it is now, so neither the order nor the contents of events matter, and commits the effect
together with the event's done mark. Failed events are retried.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import redis.asyncio
import structlog

from billing.invoices.credits import record_credit
from billing.payments.dunning import Dunning
from billing.payments.errors import BadSignature, ProviderRefused, ProviderUnavailable
from billing.payments.gateway import PaymentGateway
from billing.payments.repository import PaymentRecords
from billing.payments.settings import StripeSettings
from billing.payments.signatures import verify
from billing.rates import MICRO_USD_PER_CENT
from db.outbox import Outbox
from db.session import EVERY_TENANT, Database, WriteSession
from tenants.actors import SYSTEM

log = structlog.get_logger(__name__)

FOLLOW_UP = "billing.follow_up_webhook"
"""The task that handles one event."""
PURPOSE, TOP_UP = "purpose", "top_up"
"""The metadata of a payment that says what it is for."""
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=10), timedelta(hours=1)
MAX_ATTEMPTS = 100
"""About four days of retries."""
KEPT = timedelta(days=60)
"""How long a handled event is kept; the provider repeats an event for at most three days."""

ABOUT = {
    "invoice.created": "invoice",
    "invoice.finalized": "invoice",
    "invoice.paid": "invoice",
    "invoice.payment_failed": "invoice",
    "invoice.payment_succeeded": "invoice",
    "invoice.updated": "invoice",
    "invoice.marked_uncollectible": "invoice",
    "invoice.voided": "invoice",
    "checkout.session.completed": "checkout",
    "checkout.session.async_payment_succeeded": "checkout",
    "customer.subscription.created": "subscription",
    "customer.subscription.updated": "subscription",
    "customer.subscription.deleted": "subscription",
    "refund.created": "refund",
    "refund.updated": "refund",
}
"""The event types that are handled, and the kind of their object. Other types are stored as ignored."""

Effect = Callable[[WriteSession], Awaitable[None]]


class _Object(msgspec.Struct):
    id: str


class _Data(msgspec.Struct):
    object: _Object


class _Event(msgspec.Struct):
    id: str
    type: str
    created: int
    data: _Data


_decoder = msgspec.json.Decoder(_Event)


class WebhookReceiver:
    """Stores events, in the API processes."""

    def __init__(
        self,
        database: Database,
        outbox: Outbox | None,
        settings: StripeSettings,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Without an outbox, events wait for the next sweep."""
        self._database = database
        self._outbox = outbox
        self._clock = clock
        self._tolerance = settings.webhook_tolerance
        given = (settings.webhook_secret, settings.previous_webhook_secret)
        self._secrets = [secret.get_secret_value() for secret in given if secret is not None]

    async def receive(self, header: str | None, body: bytes) -> bool:
        """Stores an event and commits it; returns whether it is new. Raises BadSignature, also for a body
        that is no event, and DatabaseUnavailable.
        """
        verify(header, body, self._secrets, now=self._clock().timestamp(), tolerance=self._tolerance)
        try:
            event = _decoder.decode(body)
        except msgspec.DecodeError as error:
            raise BadSignature(f"no event: {error}") from error
        known = event.type in ABOUT
        async with self._database.write(EVERY_TENANT) as session:
            row: dict[str, Any] = {
                "id": event.id,
                "type": event.type,
                "object_id": event.data.object.id,
                "occurred_at": datetime.fromtimestamp(event.created, UTC),
                "state": "received" if known else "ignored",
                "next_attempt_at": self._clock(),
            }
            new = await PaymentRecords(session).add_event(row)
            if new and known and self._outbox is not None:
                self._outbox.add(session, FOLLOW_UP, {"event_id": event.id})
        if not known:
            log.info("webhook event is ignored", event_id=event.id, type=event.type)
        return new


class FollowUps:
    """Handles events, in the workers."""

    def __init__(
        self,
        database: Database,
        redis_client: redis.asyncio.Redis,
        gateway: PaymentGateway,
        dunning: Dunning,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._database = database
        self._redis = redis_client
        self._gateway = gateway
        self._dunning = dunning
        self._clock = clock

    async def sweep(self, *, limit: int = 100) -> int:
        """Handles events that are due; returns how many. Raises DatabaseUnavailable."""
        async with self._database.read(EVERY_TENANT) as session:
            due = await PaymentRecords(session).due_events(self._clock(), limit)
        done = 0
        for event_id in due:
            done += await self.follow_up(event_id)
        return done

    async def forget_old(self) -> int:
        """Deletes events handled long ago; returns how many. Raises DatabaseUnavailable."""
        async with self._database.write(EVERY_TENANT) as session:
            return await PaymentRecords(session).forget_events(self._clock() - KEPT)

    async def follow_up(self, event_id: str) -> bool:
        """Handles one event; returns whether it was handled now. Raises DatabaseUnavailable."""
        async with self._database.write(EVERY_TENANT) as session:
            event = await PaymentRecords(session).lock_event(event_id)
            if event is None or event.state != "received":
                return False
            # Leased for a while: if this process dies, the event is due again.
            event.attempts += 1
            pause = min(FIRST_PAUSE * 2 ** min(event.attempts - 1, 12), LONGEST_PAUSE)
            event.next_attempt_at = self._clock() + pause
            kind, object_id, attempts = ABOUT[event.type], event.object_id, event.attempts
        try:
            effect = await self._effect(kind, object_id)
        except (ProviderUnavailable, ProviderRefused) as error:
            gone = isinstance(error, ProviderRefused) or attempts >= MAX_ATTEMPTS
            await self._failed(event_id, str(error), gone)
            return False
        async with self._database.write(EVERY_TENANT) as session:
            event = await PaymentRecords(session).lock_event(event_id)
            if event is None or event.state != "received":
                return False
            event.state, event.error = "done", ""
            await effect(session)
        return True

    async def _failed(self, event_id: str, error: str, gone: bool) -> None:
        write = log.error if gone else log.warning
        write("webhook event is not handled", event_id=event_id, error=error)
        async with self._database.write(EVERY_TENANT) as session:
            event = await PaymentRecords(session).lock_event(event_id)
            if event is not None and event.state == "received":
                event.error, event.state = error, "failed" if gone else "received"

    async def _effect(self, kind: str, object_id: str) -> Effect:
        """Reads the object from the provider and returns what to do about it."""
        if kind == "invoice":
            return await self._of_invoice(object_id)
        if kind == "checkout":
            return await self._of_checkout(object_id)
        if kind == "refund":
            return await self._of_refund(object_id)
        return await self._of_subscription(object_id)

    async def _of_invoice(self, invoice_id: str) -> Effect:
        seen = await self._gateway.invoice(invoice_id)

        async def effect(session: WriteSession) -> None:
            await self._dunning.record_within(session, seen, self._clock())

        return effect

    async def _of_checkout(self, session_id: str) -> Effect:
        """Credits a paid top-up, once, by the payment's id."""
        seen = await self._gateway.checkout_session(session_id)

        async def effect(session: WriteSession) -> None:
            tenant_id = await PaymentRecords(session).tenant_of(seen.customer_id)
            if tenant_id is None or seen.metadata.get(PURPOSE) != TOP_UP or not seen.paid:
                return
            amount = seen.amount * MICRO_USD_PER_CENT
            reference = seen.payment_id or seen.id
            await record_credit(
                session, self._redis, tenant_id, "top_up", amount, reference, SYSTEM, at=self._clock()
            )

        return effect

    async def _of_refund(self, refund_id: str) -> Effect:
        """Takes a refunded top-up off the balance, once."""
        seen = await self._gateway.refund_view(refund_id)

        async def effect(session: WriteSession) -> None:
            tenant_id = seen.metadata.get("tenant_id")
            if seen.metadata.get(PURPOSE) != TOP_UP or tenant_id is None or not seen.succeeded:
                return
            amount = -seen.amount * MICRO_USD_PER_CENT
            await record_credit(
                session, self._redis, tenant_id, "refund", amount, seen.id, SYSTEM, at=self._clock()
            )

        return effect

    async def _of_subscription(self, subscription_id: str) -> Effect:
        """Forgets a subscription cancelled at the provider, so that the next round subscribes again."""
        status = await self._gateway.subscription_status(subscription_id)

        async def effect(session: WriteSession) -> None:
            records = PaymentRecords(session)
            known = await records.subscription_by_id(subscription_id)
            if known is None:
                return
            known.status = status
            if status in ("canceled", "incomplete_expired"):
                account = await records.account(known.tenant_id)
                if account.stripe_subscription_id == subscription_id:
                    account.stripe_subscription_id = None

        return effect
