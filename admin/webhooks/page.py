"""Gathers the webhook pages: endpoints, and the deliveries of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec

from admin.badge import Badge
from billing.notifications import signing
from billing.notifications.events import (
    ACCOUNT_GRACE,
    ACCOUNT_RESTORED,
    ACCOUNT_SUSPENDED,
    ADAPTER_READY,
    BATCH_CANCELLED,
    BATCH_COMPLETED,
    BATCH_EXPIRED,
    BATCH_FAILED,
    ENDPOINT_DISABLED,
    EVENTS,
    INVOICE_FINALIZED,
    PAYMENT_FAILED,
    PAYMENT_SUCCEEDED,
    SPEND_ALERT,
    payload,
)
from billing.notifications.models import Delivery, Notification, WebhookEndpoint
from billing.notifications.service import MAX_ENDPOINTS, TEST, WebhookService

PAGE = 25
FIELDS = ("name", "url", "event_types", "event_type")
EVENT_FIELD = "event:"
"""Before the type, in the name of its box."""
EVENT_LABELS = {
    SPEND_ALERT: "Spend alert threshold reached",
    INVOICE_FINALIZED: "Invoice finalized",
    PAYMENT_FAILED: "Payment failed",
    PAYMENT_SUCCEEDED: "Payment succeeded",
    ACCOUNT_GRACE: "Payment overdue",
    ACCOUNT_SUSPENDED: "Account suspended",
    ACCOUNT_RESTORED: "Account restored",
    ADAPTER_READY: "Adapter version ready",
    BATCH_COMPLETED: "Batch completed",
    BATCH_FAILED: "Batch failed",
    BATCH_EXPIRED: "Batch expired",
    BATCH_CANCELLED: "Batch cancelled",
    ENDPOINT_DISABLED: "Endpoint disabled after repeated failures",
}
CHOICES = [(name, EVENT_LABELS[name]) for name in EVENTS]
_SOON = timedelta(minutes=1)
_STATES = {
    "delivered": Badge("Delivered", "good"),
    "failed": Badge("Failed", "bad"),
}


@dataclass(frozen=True)
class EndpointRow:
    id: str
    name: str
    url: str
    events: list[str]
    state: Badge
    created_at: datetime
    disabled_at: datetime | None
    secret_hint: str
    old_secret_until: datetime | None
    """Until when the secret before signs as well."""


@dataclass(frozen=True)
class DeliveryRow:
    id: str
    event: str
    event_id: str
    is_test: bool
    state: Badge
    attempts: int
    answer: str
    """The endpoint's last response."""
    created_at: datetime
    next_at: datetime | None
    ended_at: datetime | None
    body: str
    """As it is sent, but for spaces."""


@dataclass(frozen=True)
class DeliveryList:
    rows: list[DeliveryRow]
    next_after: str | None
    is_moving: bool
    """Whether one of them is tried within moments: the page follows."""


class WebhooksPage:
    """Gathers the pages."""

    def __init__(self, webhooks: WebhookService) -> None:
        self._webhooks = webhooks

    async def index(self, tenant_id: str) -> list[EndpointRow]:
        """All there are: a tenant has a few. Raises DatabaseUnavailable."""
        found = await self._webhooks.list(tenant_id, after=None, limit=MAX_ENDPOINTS, newest_first=True)
        return [endpoint_row(endpoint) for endpoint in found]

    async def one(self, tenant_id: str, endpoint_id: str) -> EndpointRow:
        """Raises WebhookEndpointNotFound, DatabaseUnavailable."""
        return endpoint_row(await self._webhooks.get(tenant_id, endpoint_id))

    async def deliveries(self, tenant_id: str, endpoint_id: str, after: str | None) -> DeliveryList:
        """Raises WebhookEndpointNotFound, DatabaseUnavailable."""
        found = await self._webhooks.deliveries(
            tenant_id, endpoint_id, after=after, limit=PAGE + 1, newest_first=True
        )
        rows = [_delivery_row(delivery, told) for delivery, told in found[:PAGE]]
        soon = datetime.now(UTC) + _SOON
        moving = any(row.next_at is not None and row.next_at < soon for row in rows)
        return DeliveryList(rows, rows[-1].id if len(found) > PAGE else None, moving)


def read_events(form: Mapping[str, str]) -> list[str]:
    """The types that were ticked."""
    return [name.removeprefix(EVENT_FIELD) for name in form if name.startswith(EVENT_FIELD)]


def fields_of(endpoint: EndpointRow) -> dict[str, str]:
    """As the form has them."""
    return {"name": endpoint.name, "url": endpoint.url} | {
        f"{EVENT_FIELD}{one}": "on" for one in endpoint.events
    }


def endpoint_row(endpoint: WebhookEndpoint) -> EndpointRow:
    until, now = endpoint.previous_until, datetime.now(UTC)
    return EndpointRow(
        id=endpoint.id,
        name=endpoint.name,
        url=endpoint.url,
        events=[*endpoint.event_types],
        state=Badge("Enabled", "good") if endpoint.disabled_at is None else Badge("Disabled", "bad"),
        created_at=endpoint.created_at,
        disabled_at=endpoint.disabled_at,
        secret_hint=signing.hint(bytes(endpoint.secret)),
        old_secret_until=until if until is not None and until > now else None,
    )


def _delivery_row(delivery: Delivery, told: Notification) -> DeliveryRow:
    body = msgspec.json.encode(payload(told.id, told.type, told.created_at, told.data))
    is_pending = delivery.state == "pending"
    return DeliveryRow(
        id=delivery.id,
        event=told.type,
        event_id=told.id,
        is_test=told.key.startswith(f"{TEST}:"),
        state=_state(delivery),
        attempts=delivery.attempts,
        answer=_answer(delivery),
        created_at=delivery.created_at,
        next_at=delivery.next_at if is_pending else None,
        ended_at=delivery.ended_at,
        body=msgspec.json.format(body, indent=2).decode(),
    )


def _state(delivery: Delivery) -> Badge:
    if delivery.state != "pending":
        return _STATES.get(delivery.state, Badge(delivery.state, "off"))
    return Badge("Retrying", "warn") if delivery.attempts else Badge("Sending", "busy")


def _answer(delivery: Delivery) -> str:
    if delivery.status_code is not None:
        return f"Status {delivery.status_code}"
    return delivery.error or "Not attempted yet"
