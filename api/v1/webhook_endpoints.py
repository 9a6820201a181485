"""`/v1/webhook_endpoints`: where a tenant wants to be told of what happens, in the shapes of the stock
client; and what was delivered there, which is ours.

With an admin key: what is told is about the account.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request

from api.deps import READ_WEBHOOKS, WRITE_WEBHOOKS, Permission, actor_of, authenticate, served, services_of
from api.json_bodies import unix
from api.openapi import ERROR_RESPONSES, json_body
from api.organization.requests import naming_fields
from api.pages import Paged, page
from api.v1.notification_bodies import (
    CreateWebhookEndpointRequest,
    RotateWebhookSecretRequest,
    SampleEventRequest,
    UpdateWebhookEndpointRequest,
    read_body,
)
from billing.notifications import signing
from billing.notifications.events import EVENTS
from billing.notifications.models import Delivery, Notification, WebhookEndpoint
from billing.notifications.service import WebhookService
from tenants.actors import Actor

router = APIRouter(prefix="/v1", responses=ERROR_RESPONSES, tags=["Webhooks"])


@dataclass(frozen=True, slots=True)
class _Asking:
    tenant_id: str
    actor: Actor
    webhooks: WebhookService


async def _asking(request: Request, needed: Permission) -> _Asking:
    caller = await authenticate(request, needed)
    webhooks = served(services_of(request).webhooks, "Webhooks")
    return _Asking(caller.tenant_id, actor_of(request, caller), webhooks)


@router.get("/webhook_event_types", operation_id="listWebhookEventTypes")
async def list_event_types(request: Request) -> dict[str, Any]:
    """What can be told of."""
    await _asking(request, READ_WEBHOOKS)
    return {"object": "list", "data": list(EVENTS)}


@router.get("/webhook_endpoints", operation_id="listWebhookEndpoints")
async def list_endpoints(request: Request, query: Paged) -> dict[str, Any]:
    who = await _asking(request, READ_WEBHOOKS)
    found = await who.webhooks.list(
        who.tenant_id, after=query.after, limit=query.limit + 1, newest_first=query.newest_first
    )
    return page([endpoint_object(endpoint) for endpoint in found], query.limit)


@router.post(
    "/webhook_endpoints",
    operation_id="createWebhookEndpoint",
    openapi_extra=json_body("CreateWebhookEndpointRequest"),
)
async def create_endpoint(request: Request) -> dict[str, Any]:
    """The signing secret is in this answer and in no later one."""
    who = await _asking(request, WRITE_WEBHOOKS)
    body = await read_body(request, CreateWebhookEndpointRequest)
    with naming_fields():
        endpoint, secret = await who.webhooks.create(
            who.tenant_id, who.actor, name=body.name, url=body.url, event_types=body.event_types
        )
    return endpoint_object(endpoint) | {"signing_secret": secret}


@router.get("/webhook_endpoints/{webhook_endpoint_id}", operation_id="retrieveWebhookEndpoint")
async def retrieve_endpoint(request: Request, webhook_endpoint_id: str) -> dict[str, Any]:
    who = await _asking(request, READ_WEBHOOKS)
    return endpoint_object(await who.webhooks.get(who.tenant_id, webhook_endpoint_id))


@router.post(
    "/webhook_endpoints/{webhook_endpoint_id}",
    operation_id="updateWebhookEndpoint",
    openapi_extra=json_body("UpdateWebhookEndpointRequest"),
)
async def update_endpoint(request: Request, webhook_endpoint_id: str) -> dict[str, Any]:
    """What is left out stays as it is. One that was disabled is told things again."""
    who = await _asking(request, WRITE_WEBHOOKS)
    body = await read_body(request, UpdateWebhookEndpointRequest)
    with naming_fields():
        endpoint = await who.webhooks.update(
            who.tenant_id,
            webhook_endpoint_id,
            who.actor,
            name=body.name,
            url=body.url,
            event_types=body.event_types,
        )
    return endpoint_object(endpoint)


@router.delete("/webhook_endpoints/{webhook_endpoint_id}", operation_id="deleteWebhookEndpoint")
async def delete_endpoint(request: Request, webhook_endpoint_id: str) -> dict[str, Any]:
    who = await _asking(request, WRITE_WEBHOOKS)
    await who.webhooks.delete(who.tenant_id, webhook_endpoint_id, who.actor)
    return {"id": webhook_endpoint_id, "object": "webhook_endpoint.deleted", "deleted": True}


@router.post(
    "/webhook_endpoints/{webhook_endpoint_id}/rotate_secret",
    operation_id="rotateWebhookSecret",
    openapi_extra=json_body("RotateWebhookSecretRequest"),
)
async def rotate_secret(request: Request, webhook_endpoint_id: str) -> dict[str, Any]:
    """The new secret is in this answer and in no later one."""
    who = await _asking(request, WRITE_WEBHOOKS)
    body = await read_body(request, RotateWebhookSecretRequest)
    endpoint, secret = await who.webhooks.rotate_secret(
        who.tenant_id, webhook_endpoint_id, who.actor, keep_old=body.keep_old_secret_active_for_24_hours
    )
    return endpoint_object(endpoint) | {"signing_secret": secret}


@router.post(
    "/webhook_endpoints/{webhook_endpoint_id}/test",
    operation_id="testWebhookEndpoint",
    openapi_extra=json_body("SampleEventRequest"),
)
async def test_endpoint(request: Request, webhook_endpoint_id: str) -> dict[str, Any]:
    """Send a sample of an event now. Answered well, it enables an endpoint that was disabled."""
    who = await _asking(request, WRITE_WEBHOOKS)
    body = await read_body(request, SampleEventRequest)
    with naming_fields():
        status = await who.webhooks.test(who.tenant_id, webhook_endpoint_id, who.actor, body.event_type)
    return {
        "object": "webhook_endpoint.test",
        "webhook_endpoint_id": webhook_endpoint_id,
        "event_type": body.event_type,
        "status_code": status,
        "success": True,
    }


@router.get("/webhook_endpoints/{webhook_endpoint_id}/deliveries", operation_id="listWebhookDeliveries")
async def list_deliveries(request: Request, webhook_endpoint_id: str, query: Paged) -> dict[str, Any]:
    """What the endpoint was told, or is to be told, in the last thirty days."""
    who = await _asking(request, READ_WEBHOOKS)
    found = await who.webhooks.deliveries(
        who.tenant_id,
        webhook_endpoint_id,
        after=query.after,
        limit=query.limit + 1,
        newest_first=query.newest_first,
    )
    return page([delivery_object(*row) for row in found], query.limit)


@router.post(
    "/webhook_endpoints/{webhook_endpoint_id}/deliveries/{delivery_id}/retry",
    operation_id="retryWebhookDelivery",
)
async def retry_delivery(request: Request, webhook_endpoint_id: str, delivery_id: str) -> dict[str, Any]:
    """Deliver it once more, soon, under the same webhook-id."""
    who = await _asking(request, WRITE_WEBHOOKS)
    return delivery_object(
        *await who.webhooks.retry(who.tenant_id, webhook_endpoint_id, delivery_id, who.actor)
    )


def endpoint_object(endpoint: WebhookEndpoint) -> dict[str, Any]:
    return {
        "id": endpoint.id,
        "object": "webhook_endpoint",
        "name": endpoint.name,
        "url": endpoint.url,
        "event_types": list(endpoint.event_types),
        "signing_secret_hint": signing.hint(bytes(endpoint.secret)),
        "created_at": unix(endpoint.created_at),
        "updated_at": unix(endpoint.updated_at),
        "disabled_at": unix(endpoint.disabled_at),
    }


def delivery_object(delivery: Delivery, notification: Notification) -> dict[str, Any]:
    return {
        "id": delivery.id,
        "object": "webhook_endpoint.delivery",
        "event_id": notification.id,
        "event_type": notification.type,
        "data": notification.data,
        "status": delivery.state,
        "attempts": delivery.attempts,
        "status_code": delivery.status_code,
        "error": delivery.error,
        "created_at": unix(delivery.created_at),
        "next_attempt_at": unix(delivery.next_at) if delivery.state == "pending" else None,
        "ended_at": unix(delivery.ended_at),
    }
