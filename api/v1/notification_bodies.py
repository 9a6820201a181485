"""Defines the JSON request bodies of webhooks and spend alerts: the fields of OpenAI's client, and ours."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from fastapi import Request
from msgspec import Meta, Struct

from api.body_fields import Body, Name
from api.json_bodies import BodyDecoders, read_json
from billing.notifications.events import EVENTS
from tenants.outbound.addresses import URL

Url = Annotated[
    str, Meta(min_length=1, max_length=2000, extra_json_schema={"format": "uri", "pattern": rf"^{URL}$"})
]
EventName = Annotated[str, Meta(pattern=r"^[a-z_.]{1,64}$", extra_json_schema={"enum": [*EVENTS]})]
Email = Annotated[str, Meta(max_length=254, pattern=r"^[!-?A-~]{1,64}@[!-?A-~]{1,189}$")]


class CreateWebhookEndpointRequest(Body, frozen=True, kw_only=True):
    name: Name
    url: Url
    event_types: Annotated[list[EventName], Meta(min_length=1, max_length=64)]


class UpdateWebhookEndpointRequest(Body, frozen=True, kw_only=True):
    name: Name | None = None
    url: Url | None = None
    event_types: Annotated[list[EventName], Meta(min_length=1, max_length=64)] | None = None


class RotateWebhookSecretRequest(Body, frozen=True, kw_only=True):
    keep_old_secret_active_for_24_hours: bool = False


class SampleEventRequest(Body, frozen=True, kw_only=True):
    event_type: EventName


class NotificationChannel(Body, frozen=True, kw_only=True):
    recipients: Annotated[list[Email], Meta(max_length=20)]
    """Empty: the billing address, and members with the right to manage billing."""
    type: Literal["email"] = "email"
    subject_prefix: Annotated[str, Meta(max_length=60, pattern=r"^[^\x00-\x1f\x7f]*$")] | None = None


class SpendAlertRequest(Body, frozen=True, kw_only=True):
    """One threshold: an amount, or a percentage of the hard limit."""

    currency: Literal["USD"]
    interval: Literal["month"]
    notification_channel: NotificationChannel = NotificationChannel(recipients=[])
    threshold_amount: Annotated[int, Meta(ge=1, le=10**10)] | None = None
    """In cents."""
    threshold_micro_usd: Annotated[int, Meta(ge=1, le=10**14)] | None = None
    threshold_percent: Annotated[int, Meta(ge=1, le=1000)] | None = None
    """Percent of the month's spend limit of the same scope. Without such a limit the alert is not raised."""


BODIES = (
    CreateWebhookEndpointRequest,
    UpdateWebhookEndpointRequest,
    RotateWebhookSecretRequest,
    SampleEventRequest,
    SpendAlertRequest,
)
_bodies = BodyDecoders(BODIES)
BodyT = TypeVar("BodyT", bound=Struct)


async def read_body(request: Request, kind: type[BodyT]) -> BodyT:
    """Raises InvalidValue, UnsupportedParameter."""
    return _bodies.decode(kind, await read_json(request))
