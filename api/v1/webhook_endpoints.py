"""`/v1/webhook_endpoints`: manages a tenant's webhook endpoints and lists their deliveries, for admin keys.

Endpoints have the format of OpenAI's client; deliveries are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from fastapi import Request

from api.authentication import READ_WEBHOOKS, WRITE_WEBHOOKS, Permission, actor_of, authenticate
from api.json_bodies import unix
from api.openapi.routing import Router, fails_with, json_body
from api.organization.admin_requests import naming_fields
from api.organization.response_objects import DeletedObject, deleted
from api.pagination import Page, Paged, page
from api.services import served, services_of
from api.v1.notification_bodies import (
    CreateWebhookEndpointRequest,
    RotateWebhookSecretRequest,
    SampleEventRequest,
    UpdateWebhookEndpointRequest,
    read_body,
)
from billing.notifications import signing
from billing.notifications.errors import (
    DeliveryNotFound,
    TooManyEndpoints,
    WebhookEndpointNotFound,
)
from billing.notifications.events import EVENTS
from billing.notifications.models import Delivery, Notification, WebhookEndpoint
from billing.notifications.service import WebhookService
from tenants.actors import Actor
from tenants.outbound.errors import EndpointUnreachable

router = Router(prefix="/v1", tags=["Webhooks"])


class EventTypeList(TypedDict):
    """The types of events that webhooks can receive."""

    object: Literal["list"]
    data: list[str]


class WebhookEndpointObject(TypedDict):
    """A URL of yours that receives events."""

    id: str
    object: Literal["webhook_endpoint"]
    name: str
    url: str
    event_types: list[str]
    """The events that are sent."""
    signing_secret_hint: str
    """The end of the secret that events are signed with."""
    created_at: int
    """Unix seconds."""
    updated_at: int
    """Unix seconds."""
    disabled_at: int | None
    """Unix seconds when it was disabled because deliveries kept failing; null while it is enabled."""


class SecretWebhookEndpointObject(WebhookEndpointObject):
    """A webhook endpoint with its signing secret."""

    signing_secret: str
    """The secret that events are signed with. It is shown only once."""


class WebhookTestObject(TypedDict):
    """The endpoint's answer to a sample event."""

    object: Literal["webhook_endpoint.test"]
    webhook_endpoint_id: str
    event_type: str
    status_code: int
    success: Literal[True]


class WebhookDeliveryObject(TypedDict):
    """An event that was, or is to be, sent to an endpoint."""

    id: str
    object: Literal["webhook_endpoint.delivery"]
    event_id: str
    event_type: str
    data: dict[str, Any]
    """The event's data."""
    status: str
    """`pending`, `delivered` or `failed`."""
    attempts: int
    status_code: int | None
    """The endpoint's last answer."""
    error: str | None
    """Why the last attempt failed."""
    created_at: int
    """Unix seconds."""
    next_attempt_at: int | None
    """Unix seconds of the next attempt, while there is one."""
    ended_at: int | None
    """Unix seconds when it was delivered or given up."""


@dataclass(frozen=True, slots=True)
class _Caller:
    tenant_id: str
    actor: Actor
    webhooks: WebhookService


async def _authorize(request: Request, needed: Permission) -> _Caller:
    caller = await authenticate(request, needed)
    webhooks = served(services_of(request).webhooks, "Webhooks")
    return _Caller(caller.tenant_id, actor_of(request, caller), webhooks)


@router.get("/webhook_event_types", operation_id="listWebhookEventTypes")
async def list_event_types(request: Request) -> EventTypeList:
    """Lists the types of events that a webhook endpoint can receive."""
    await _authorize(request, READ_WEBHOOKS)
    return {"object": "list", "data": list(EVENTS)}


@router.get("/webhook_endpoints", operation_id="listWebhookEndpoints")
async def list_endpoints(request: Request, query: Paged) -> Page[WebhookEndpointObject]:
    """Lists webhook endpoints."""
    caller = await _authorize(request, READ_WEBHOOKS)
    found = await caller.webhooks.list(
        caller.tenant_id, after=query.after, limit=query.limit + 1, newest_first=query.newest_first
    )
    return page([endpoint_object(endpoint) for endpoint in found], query.limit)


@router.post(
    "/webhook_endpoints",
    operation_id="createWebhookEndpoint",
    openapi_extra=json_body("CreateWebhookEndpointRequest"),
)
@fails_with(TooManyEndpoints(16))
async def create_endpoint(request: Request) -> SecretWebhookEndpointObject:
    """Creates a webhook endpoint. The response is the only one that has its signing secret."""
    caller = await _authorize(request, WRITE_WEBHOOKS)
    body = await read_body(request, CreateWebhookEndpointRequest)
    with naming_fields():
        endpoint, secret = await caller.webhooks.create(
            caller.tenant_id, caller.actor, name=body.name, url=body.url, event_types=body.event_types
        )
    return {**endpoint_object(endpoint), "signing_secret": secret}


@router.get("/webhook_endpoints/{webhook_endpoint_id}", operation_id="retrieveWebhookEndpoint")
@fails_with(WebhookEndpointNotFound("whep_1"))
async def retrieve_endpoint(request: Request, webhook_endpoint_id: str) -> WebhookEndpointObject:
    """Retrieves a webhook endpoint."""
    caller = await _authorize(request, READ_WEBHOOKS)
    return endpoint_object(await caller.webhooks.get(caller.tenant_id, webhook_endpoint_id))


@router.post(
    "/webhook_endpoints/{webhook_endpoint_id}",
    operation_id="updateWebhookEndpoint",
    openapi_extra=json_body("UpdateWebhookEndpointRequest"),
)
@fails_with(WebhookEndpointNotFound("whep_1"))
async def update_endpoint(request: Request, webhook_endpoint_id: str) -> WebhookEndpointObject:
    """Updates a webhook endpoint, and enables it if it was disabled. Fields that are left out stay as they
    are.
    """
    caller = await _authorize(request, WRITE_WEBHOOKS)
    body = await read_body(request, UpdateWebhookEndpointRequest)
    with naming_fields():
        endpoint = await caller.webhooks.update(
            caller.tenant_id,
            webhook_endpoint_id,
            caller.actor,
            name=body.name,
            url=body.url,
            event_types=body.event_types,
        )
    return endpoint_object(endpoint)


@router.delete("/webhook_endpoints/{webhook_endpoint_id}", operation_id="deleteWebhookEndpoint")
@fails_with(WebhookEndpointNotFound("whep_1"))
async def delete_endpoint(request: Request, webhook_endpoint_id: str) -> DeletedObject:
    """Deletes a webhook endpoint and its deliveries."""
    caller = await _authorize(request, WRITE_WEBHOOKS)
    await caller.webhooks.delete(caller.tenant_id, webhook_endpoint_id, caller.actor)
    return deleted("webhook_endpoint", webhook_endpoint_id)


@router.post(
    "/webhook_endpoints/{webhook_endpoint_id}/rotate_secret",
    operation_id="rotateWebhookSecret",
    openapi_extra=json_body("RotateWebhookSecretRequest"),
)
@fails_with(WebhookEndpointNotFound("whep_1"))
async def rotate_secret(request: Request, webhook_endpoint_id: str) -> SecretWebhookEndpointObject:
    """Creates a new signing secret. The response is the only one that has it."""
    caller = await _authorize(request, WRITE_WEBHOOKS)
    body = await read_body(request, RotateWebhookSecretRequest)
    endpoint, secret = await caller.webhooks.rotate_secret(
        caller.tenant_id, webhook_endpoint_id, caller.actor, keep_old=body.keep_old_secret_active_for_24_hours
    )
    return {**endpoint_object(endpoint), "signing_secret": secret}


@router.post(
    "/webhook_endpoints/{webhook_endpoint_id}/test",
    operation_id="testWebhookEndpoint",
    openapi_extra=json_body("SampleEventRequest"),
)
@fails_with(WebhookEndpointNotFound("whep_1"), EndpointUnreachable("no answer within 10 s"))
async def test_endpoint(request: Request, webhook_endpoint_id: str) -> WebhookTestObject:
    """Sends a sample event now. If the endpoint answers well and was disabled, it is enabled."""
    caller = await _authorize(request, WRITE_WEBHOOKS)
    body = await read_body(request, SampleEventRequest)
    with naming_fields():
        status = await caller.webhooks.test(
            caller.tenant_id, webhook_endpoint_id, caller.actor, body.event_type
        )
    return {
        "object": "webhook_endpoint.test",
        "webhook_endpoint_id": webhook_endpoint_id,
        "event_type": body.event_type,
        "status_code": status,
        "success": True,
    }


@router.get("/webhook_endpoints/{webhook_endpoint_id}/deliveries", operation_id="listWebhookDeliveries")
@fails_with(WebhookEndpointNotFound("whep_1"))
async def list_deliveries(
    request: Request, webhook_endpoint_id: str, query: Paged
) -> Page[WebhookDeliveryObject]:
    """Lists the deliveries of the last thirty days, those to come included."""
    caller = await _authorize(request, READ_WEBHOOKS)
    found = await caller.webhooks.deliveries(
        caller.tenant_id,
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
@fails_with(WebhookEndpointNotFound("whep_1"), DeliveryNotFound("whdel_1"))
async def retry_delivery(
    request: Request, webhook_endpoint_id: str, delivery_id: str
) -> WebhookDeliveryObject:
    """Sends a delivery again, with the same `webhook-id`."""
    caller = await _authorize(request, WRITE_WEBHOOKS)
    return delivery_object(
        *await caller.webhooks.retry(caller.tenant_id, webhook_endpoint_id, delivery_id, caller.actor)
    )


def endpoint_object(endpoint: WebhookEndpoint) -> WebhookEndpointObject:
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


def delivery_object(delivery: Delivery, notification: Notification) -> WebhookDeliveryObject:
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
