"""Delivers notifications by webhook and mail: claims due deliveries, sends them, and retries or ends them.

A claimed delivery is leased, and no transaction is open while it is sent. A process that is killed leaves the
delivery to the next, so it may arrive twice, with the same id.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec
import structlog

from billing.notifications.errors import MailNotSent
from billing.notifications.events import ENDPOINT_DISABLED, payload
from billing.notifications.mailing import Mailer
from billing.notifications.messages import message
from billing.notifications.models import WebhookEndpoint
from billing.notifications.publishing import publish
from billing.notifications.repository import DueDeliveries, DueDelivery
from billing.notifications.sending import WebhookSender
from billing.notifications.signing import headers
from db.session import EVERY_TENANT, Database
from telemetry.tasks import gather_all
from tenants.outbound.errors import EndpointUnreachable
from tenants.repository import TenantDirectory

log = structlog.get_logger(__name__)

BACKOFF = (5, 30, 120, 600, 1800, 3600, 2 * 3600, 4 * 3600, 8 * 3600)
"""Seconds to wait after each failed attempt; the last repeats."""
LEASE = 60.0
"""Seconds for which claimed deliveries are leased: longer than one batch takes."""
AT_ONCE = 32
GONE = 410

Clock = Callable[[], datetime]


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The result of one attempt."""

    delivered: bool
    status_code: int | None = None
    error: str | None = None
    for_good: bool = False
    """Whether a retry would fail as well."""


class Deliveries:
    """Delivers the notifications of all tenants. Without a `mailer`, all mail fails."""

    def __init__(
        self,
        database: Database,
        webhooks: WebhookSender,
        mailer: Mailer | None = None,
        *,
        clock: Clock = _now,
    ) -> None:
        self._database = database
        self._webhooks = webhooks
        self._mailer = mailer
        self._clock = clock

    async def any_due(self) -> bool:
        async with self._database.read(EVERY_TENANT) as session:
            return await DueDeliveries(session).any(self._clock())

    async def deliver(self, limit: int = AT_ONCE) -> int:
        """Sends at most `limit` due deliveries at once; returns how many. Raises DatabaseUnavailable."""
        async with self._database.write(EVERY_TENANT) as session:
            taken = await DueDeliveries(session).take(self._clock(), lease=LEASE, limit=limit)
            directory = TenantDirectory(session)
            mailed = {due.tenant_id for due in taken if due.recipient is not None}
            names = {tenant: found.name for tenant in mailed if (found := await directory.tenant(tenant))}
        attempts = await gather_all(*(self._try(due, names.get(due.tenant_id, "")) for due in taken))
        for due, attempt in zip(taken, attempts, strict=True):
            await self._note(due, attempt)
        return len(taken)

    async def _try(self, due: DueDelivery, tenant_name: str) -> _Attempt:
        if due.endpoint is not None:
            return await self._post(due, due.endpoint)
        assert due.recipient is not None
        if self._mailer is None:
            return _Attempt(False, error="no mail server is set", for_good=True)
        words = message(due.notification.type, tenant_name, due.notification.data)
        try:
            await self._mailer.send(due.recipient, words, due.id)
        except MailNotSent as error:
            return _Attempt(False, error=error.reason, for_good=error.for_good)
        return _Attempt(True)

    async def _post(self, due: DueDelivery, endpoint: WebhookEndpoint) -> _Attempt:
        now, notification = self._clock(), due.notification
        body = msgspec.json.encode(
            payload(notification.id, notification.type, notification.created_at, notification.data)
        )
        signed = headers(notification.id, int(now.timestamp()), body, signing_keys(endpoint, now))
        try:
            status = await self._webhooks.post(endpoint.url, signed, body)
        except EndpointUnreachable as error:
            return _Attempt(False, error=error.reason)
        if 200 <= status < 300:
            return _Attempt(True, status)
        return _Attempt(False, status, f"it answered {status}", for_good=status == GONE)

    async def _note(self, due: DueDelivery, attempt: _Attempt) -> None:
        now = self._clock()
        async with self._database.write(EVERY_TENANT) as session:
            deliveries = DueDeliveries(session)
            if attempt.delivered:
                await deliveries.end([due.id], "delivered", now, attempt.status_code, None)
                return
            again = now + timedelta(seconds=BACKOFF[min(due.attempts, len(BACKOFF)) - 1])
            if not attempt.for_good and again <= due.give_up_at:
                await deliveries.postpone(due.id, again, attempt.status_code, attempt.error)
                return
            log.warning("delivery failed for the last time", delivery_id=due.id, error=attempt.error)
            await deliveries.end([due.id], "failed", now, attempt.status_code, attempt.error)
            endpoint = due.endpoint
            if endpoint is None or await deliveries.delivered_any(endpoint.id, due.notification.created_at):
                return
            if await deliveries.disable(endpoint.id, now):
                facts = {"webhook_endpoint_id": endpoint.id, "url": endpoint.url}
                key = f"{ENDPOINT_DISABLED}:{endpoint.id}:{now.isoformat()}"
                await publish(session, due.tenant_id, ENDPOINT_DISABLED, facts, key=key, now=now)


def signing_keys(endpoint: WebhookEndpoint, now: datetime) -> list[bytes]:
    """Returns the keys that sign a delivery now, the new secret first."""
    keys = [bytes(endpoint.secret)]
    until = endpoint.previous_until
    if endpoint.previous_secret is not None and until is not None and until > now:
        keys.append(bytes(endpoint.previous_secret))
    return keys
