"""Manages tenants' webhook endpoints: creates, changes and tests them, and lists their deliveries.

Every method is one transaction, except for the request that a test sends. The secret of an endpoint is shown
once, when it is created.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
from sqlalchemy import Row

from billing.notifications import signing
from billing.notifications.errors import (
    DeliveryNotFound,
    TooManyEndpoints,
    WebhookEndpointNotFound,
)
from billing.notifications.events import EVENTS, payload
from billing.notifications.models import Delivery, Notification, WebhookEndpoint
from billing.notifications.publishing import GIVE_UP_AFTER
from billing.notifications.repository import EndpointRepository, NotificationRepository
from billing.notifications.sending import WebhookSender
from db.base import new_id
from db.session import Database, WriteSession
from tenants.actors import Actor
from tenants.audit.service import AuditLog
from tenants.outbound.errors import EndpointUnreachable
from tenants.validation import checked_name

MAX_ENDPOINTS = 20
TEST = "test"
"""The prefix of the key of a test's notification, before its id."""
OLD_SECRET_FOR = timedelta(hours=24)


class WebhookService:
    """Manages the endpoints of every tenant."""

    def __init__(self, database: Database, sender: WebhookSender) -> None:
        self._database = database
        self._sender = sender

    async def create(
        self, tenant_id: str, actor: Actor, *, name: str, url: str, event_types: Sequence[str]
    ) -> tuple[WebhookEndpoint, str]:
        """Creates an endpoint and returns it with its secret. Raises TooManyEndpoints, ValueError naming the
        field.
        """
        self._sender.check_url(url)
        now = datetime.now(UTC)
        endpoint = WebhookEndpoint(
            id=new_id("whep"),
            tenant_id=tenant_id,
            name=checked_name("name", name),
            url=url,
            event_types=_checked_types(event_types),
            secret=signing.new_secret(),
            created_at=now,
            updated_at=now,
        )
        async with self._database.write(tenant_id) as session:
            endpoints = EndpointRepository(session, tenant_id)
            await endpoints.advisory_lock("webhook endpoints")
            if await endpoints.count() >= MAX_ENDPOINTS:
                raise TooManyEndpoints(MAX_ENDPOINTS)
            endpoints.add_own(endpoint)
            details = {"name": endpoint.name, "url": url, "event_types": endpoint.event_types}
            await _audit(session, endpoint, actor, "created", details)
        return endpoint, signing.shown(endpoint.secret)

    async def list(
        self, tenant_id: str, *, after: str | None, limit: int, newest_first: bool
    ) -> Sequence[WebhookEndpoint]:
        async with self._database.read(tenant_id) as session:
            endpoints = EndpointRepository(session, tenant_id)
            return await endpoints.page(after=after, limit=limit, newest_first=newest_first)

    async def get(self, tenant_id: str, endpoint_id: str) -> WebhookEndpoint:
        """Returns an endpoint. Raises WebhookEndpointNotFound."""
        async with self._database.read(tenant_id) as session:
            found = await EndpointRepository(session, tenant_id).find(endpoint_id)
        if found is None:
            raise WebhookEndpointNotFound(endpoint_id)
        return found

    async def update(
        self,
        tenant_id: str,
        endpoint_id: str,
        actor: Actor,
        *,
        name: str | None = None,
        url: str | None = None,
        event_types: Sequence[str] | None = None,
    ) -> WebhookEndpoint:
        """Changes what is not None, and enables a disabled endpoint.

        Raises WebhookEndpointNotFound, ValueError naming the field.
        """
        changes: dict[str, object] = {}
        if name is not None:
            changes["name"] = checked_name("name", name)
        if url is not None:
            self._sender.check_url(url)
            changes["url"] = url
        if event_types is not None:
            changes["event_types"] = _checked_types(event_types)
        async with self._database.write(tenant_id) as session:
            endpoint = await _locked(session, tenant_id, endpoint_id)
            for field, value in changes.items():
                setattr(endpoint, field, value)
            endpoint.disabled_at = None
            endpoint.updated_at = datetime.now(UTC)
            await _audit(session, endpoint, actor, "updated", changes)
        return endpoint

    async def delete(self, tenant_id: str, endpoint_id: str, actor: Actor) -> None:
        """Deletes an endpoint with its deliveries. Raises WebhookEndpointNotFound."""
        async with self._database.write(tenant_id) as session:
            endpoint = await _locked(session, tenant_id, endpoint_id)
            await EndpointRepository(session, tenant_id).delete(endpoint_id)
            await _audit(session, endpoint, actor, "deleted", {"url": endpoint.url})

    async def rotate_secret(
        self, tenant_id: str, endpoint_id: str, actor: Actor, *, keep_old: bool
    ) -> tuple[WebhookEndpoint, str]:
        """Replaces the secret and returns the new one; with `keep_old`, the old one signs as well for a day.
        Raises WebhookEndpointNotFound.
        """
        async with self._database.write(tenant_id) as session:
            endpoint = await _locked(session, tenant_id, endpoint_id)
            now = datetime.now(UTC)
            endpoint.previous_secret = bytes(endpoint.secret) if keep_old else None
            endpoint.previous_until = now + OLD_SECRET_FOR if keep_old else None
            endpoint.secret = signing.new_secret()
            endpoint.updated_at = now
            await _audit(session, endpoint, actor, "secret_rotated", {"old_secret_kept": keep_old})
        return endpoint, signing.shown(endpoint.secret)

    async def test(self, tenant_id: str, endpoint_id: str, actor: Actor, event_type: str) -> int:
        """Sends an example event at once and returns the response's status. It is listed among the endpoint's
        deliveries, successful or not; a successful test enables the endpoint.

        Raises WebhookEndpointNotFound, EndpointUnreachable, ValueError naming the field.
        """
        if event_type not in EVENTS:
            raise ValueError(f"event_type {event_type[:60]!r} is none that there is")
        async with self._database.write(tenant_id) as session:
            endpoint = await _locked(session, tenant_id, endpoint_id)
            await _audit(session, endpoint, actor, "tested", {"event_type": event_type})
        now, sample_id = datetime.now(UTC), new_id("evt")
        body = msgspec.json.encode(payload(sample_id, event_type, now, EVENTS[event_type].sample))
        headers = signing.headers(sample_id, int(now.timestamp()), body, [bytes(endpoint.secret)])
        try:
            status = await self._sender.post(endpoint.url, headers, body)
        except EndpointUnreachable as error:
            await self._note_test(tenant_id, endpoint_id, sample_id, event_type, now, None, error.reason)
            raise
        wrong = None if 200 <= status < 300 else f"it answered {status}"
        await self._note_test(tenant_id, endpoint_id, sample_id, event_type, now, status, wrong)
        return status

    async def _note_test(
        self,
        tenant_id: str,
        endpoint_id: str,
        sample_id: str,
        event_type: str,
        at: datetime,
        status: int | None,
        error: str | None,
    ) -> None:
        """Raises WebhookEndpointNotFound if the endpoint was deleted meanwhile."""
        async with self._database.write(tenant_id) as session:
            endpoint = await _locked(session, tenant_id, endpoint_id)
            notifications = NotificationRepository(session, tenant_id)
            sample = dict(EVENTS[event_type].sample)
            await notifications.add(sample_id, event_type, f"{TEST}:{sample_id}", sample, at)
            notifications.add_own(
                Delivery(
                    id=new_id("dlv"),
                    tenant_id=tenant_id,
                    notification_id=sample_id,
                    endpoint_id=endpoint_id,
                    state="delivered" if error is None else "failed",
                    attempts=1,
                    next_at=at,
                    give_up_at=at,
                    status_code=status,
                    error=error,
                    created_at=at,
                    ended_at=datetime.now(UTC),
                )
            )
            if error is None:
                endpoint.disabled_at = None

    # Deliveries -------------------------------------------------------------------------------------------

    async def deliveries(
        self, tenant_id: str, endpoint_id: str, *, after: str | None, limit: int, newest_first: bool
    ) -> Sequence[Row[Delivery, Notification]]:
        """Returns a page of the endpoint's deliveries. Raises WebhookEndpointNotFound."""
        async with self._database.read(tenant_id) as session:
            if await EndpointRepository(session, tenant_id).find(endpoint_id) is None:
                raise WebhookEndpointNotFound(endpoint_id)
            repository = NotificationRepository(session, tenant_id)
            return await repository.deliveries(
                endpoint_id, after=after, limit=limit, newest_first=newest_first
            )

    async def retry(
        self, tenant_id: str, endpoint_id: str, delivery_id: str, actor: Actor
    ) -> Row[Delivery, Notification]:
        """Queues a delivery again, even if it succeeded. Raises WebhookEndpointNotFound, DeliveryNotFound."""
        now = datetime.now(UTC)
        async with self._database.write(tenant_id) as session:
            endpoint = await _locked(session, tenant_id, endpoint_id)
            found = await NotificationRepository(session, tenant_id).delivery(endpoint_id, delivery_id)
            if found is None:
                raise DeliveryNotFound(delivery_id)
            delivery = found[0]
            delivery.state, delivery.attempts, delivery.ended_at = "pending", 0, None
            delivery.next_at, delivery.give_up_at = now, now + GIVE_UP_AFTER
            await _audit(session, endpoint, actor, "delivery_retried", {"delivery_id": delivery_id})
        return found


def _checked_types(event_types: Sequence[str]) -> list[str]:
    unknown = sorted(set(event_types) - set(EVENTS))
    if unknown or not event_types:
        raise ValueError(f"event_types must be some of {', '.join(EVENTS)}")
    return [name for name in EVENTS if name in set(event_types)]


async def _locked(session: WriteSession, tenant_id: str, endpoint_id: str) -> WebhookEndpoint:
    endpoint = await EndpointRepository(session, tenant_id).find(endpoint_id, lock=True)
    if endpoint is None:
        raise WebhookEndpointNotFound(endpoint_id)
    return endpoint


async def _audit(
    session: WriteSession, endpoint: WebhookEndpoint, actor: Actor, what: str, details: Mapping[str, object]
) -> None:
    target = ("webhook_endpoint", endpoint.id)
    await AuditLog.record(session, endpoint.tenant_id, actor, f"webhook_endpoint.{what}", target, details)
