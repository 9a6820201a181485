"""`/v1/organization/spend_alerts` and a project's: manages alerts on a month's spend.

In the format of OpenAI's client, whose thresholds are in cents; micro-USD and percentages of the spend limit
are ours. Alerts refuse no requests: for that, set a spend limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict

from fastapi import Request

from api.authentication import READ_LIMITS, WRITE_LIMITS, Permission, actor_of, authenticate
from api.errors import InvalidValue
from api.json_bodies import unix
from api.openapi.routing import Router, fails_with, json_body
from api.organization.admin_requests import naming_fields
from api.organization.response_objects import DeletedObject, deleted
from api.pagination import Page, Paged, page
from api.services import served, services_of
from api.v1.notification_bodies import SpendAlertRequest, read_body
from billing.rates import MICRO_USD_PER_CENT
from billing.spend.alerts import SpendAlertService, Threshold
from billing.spend.errors import SpendAlertNotFound, TooManyAlerts
from billing.spend.models import SpendAlert
from tenants.actors import Actor
from tenants.errors import ProjectNotFound

router = Router(prefix="/v1/organization", tags=["Limits"])

AlertName = Literal["organization.spend_alert", "project.spend_alert"]


class AlertChannel(TypedDict):
    """Who is notified."""

    type: Literal["email"]
    recipients: list[str]
    """Empty: the billing address, and members who settle what is paid."""
    subject_prefix: str | None


class SpendAlertObject(TypedDict):
    """An alert that is raised when a month's spend reaches a threshold. It refuses no request."""

    id: str
    object: AlertName
    project_id: str | None
    """Null for an alert on the whole organization."""
    currency: Literal["USD"]
    interval: Literal["month"]
    notification_channel: AlertChannel
    threshold_amount: int | None
    """Cents; null for a threshold in percent."""
    threshold_micro_usd: int | None
    threshold_percent: int | None
    """Percent of the month's spend limit; null for an amount."""
    created_at: int
    """Unix seconds."""
    updated_at: int
    """Unix seconds."""


_BODY = json_body("SpendAlertRequest")


@dataclass(frozen=True, slots=True)
class _Caller:
    tenant_id: str
    actor: Actor
    alerts: SpendAlertService


async def _authorize(request: Request, needed: Permission) -> _Caller:
    caller = await authenticate(request, needed)
    alerts = served(services_of(request).spend_alerts, "Spend alerts")
    return _Caller(caller.tenant_id, actor_of(request, caller), alerts)


@router.get("/spend_alerts", operation_id="listSpendAlerts")
async def list_alerts(request: Request, query: Paged) -> Page[SpendAlertObject]:
    """Lists the organization's spend alerts."""
    return await _list(request, None, query)


@router.post("/spend_alerts", operation_id="createSpendAlert", openapi_extra=_BODY)
@fails_with(TooManyAlerts(100))
async def create_alert(request: Request) -> SpendAlertObject:
    """Creates an alert on the organization's spend in a month. Give one of the three thresholds."""
    return await _create(request, None)


@router.get("/spend_alerts/{alert_id}", operation_id="retrieveSpendAlert")
@fails_with(SpendAlertNotFound("alert_1"))
async def retrieve_alert(request: Request, alert_id: str) -> SpendAlertObject:
    """Retrieves a spend alert."""
    return await _retrieve(request, None, alert_id)


@router.post("/spend_alerts/{alert_id}", operation_id="updateSpendAlert", openapi_extra=_BODY)
@fails_with(SpendAlertNotFound("alert_1"))
async def update_alert(request: Request, alert_id: str) -> SpendAlertObject:
    """Replaces a spend alert. With another threshold it can be raised again in the same month."""
    return await _update(request, None, alert_id)


@router.delete("/spend_alerts/{alert_id}", operation_id="deleteSpendAlert")
@fails_with(SpendAlertNotFound("alert_1"))
async def delete_alert(request: Request, alert_id: str) -> DeletedObject:
    """Deletes a spend alert."""
    return await _delete(request, None, alert_id)


@router.get("/projects/{project_id}/spend_alerts", operation_id="listProjectSpendAlerts")
@fails_with(ProjectNotFound("proj_1"))
async def list_project_alerts(request: Request, project_id: str, query: Paged) -> Page[SpendAlertObject]:
    """Lists the project's spend alerts."""
    return await _list(request, project_id, query)


@router.post(
    "/projects/{project_id}/spend_alerts", operation_id="createProjectSpendAlert", openapi_extra=_BODY
)
@fails_with(ProjectNotFound("proj_1"), TooManyAlerts(100))
async def create_project_alert(request: Request, project_id: str) -> SpendAlertObject:
    """Creates an alert on the project's spend in a month. Give one of the three thresholds."""
    return await _create(request, project_id)


@router.get("/projects/{project_id}/spend_alerts/{alert_id}", operation_id="retrieveProjectSpendAlert")
@fails_with(SpendAlertNotFound("alert_1"))
async def retrieve_project_alert(request: Request, project_id: str, alert_id: str) -> SpendAlertObject:
    """Retrieves a spend alert of the project."""
    return await _retrieve(request, project_id, alert_id)


@router.post(
    "/projects/{project_id}/spend_alerts/{alert_id}",
    operation_id="updateProjectSpendAlert",
    openapi_extra=_BODY,
)
@fails_with(SpendAlertNotFound("alert_1"))
async def update_project_alert(request: Request, project_id: str, alert_id: str) -> SpendAlertObject:
    """Replaces a spend alert of the project. With another threshold it can be raised again in the same
    month.
    """
    return await _update(request, project_id, alert_id)


@router.delete("/projects/{project_id}/spend_alerts/{alert_id}", operation_id="deleteProjectSpendAlert")
@fails_with(SpendAlertNotFound("alert_1"))
async def delete_project_alert(request: Request, project_id: str, alert_id: str) -> DeletedObject:
    """Deletes a spend alert of the project."""
    return await _delete(request, project_id, alert_id)


async def _list(request: Request, project_id: str | None, query: Paged) -> Page[SpendAlertObject]:
    caller = await _authorize(request, READ_LIMITS)
    found = await caller.alerts.list(
        caller.tenant_id,
        project_id,
        after=query.after,
        limit=query.limit + 1,
        newest_first=query.newest_first,
    )
    return page([alert_object(alert) for alert in found], query.limit)


async def _create(request: Request, project_id: str | None) -> SpendAlertObject:
    caller = await _authorize(request, WRITE_LIMITS)
    threshold = await _read(request)
    with naming_fields():
        return alert_object(await caller.alerts.create(caller.tenant_id, project_id, caller.actor, threshold))


async def _retrieve(request: Request, project_id: str | None, alert_id: str) -> SpendAlertObject:
    caller = await _authorize(request, READ_LIMITS)
    return alert_object(await caller.alerts.get(caller.tenant_id, project_id, alert_id))


async def _update(request: Request, project_id: str | None, alert_id: str) -> SpendAlertObject:
    caller = await _authorize(request, WRITE_LIMITS)
    threshold = await _read(request)
    with naming_fields():
        return alert_object(
            await caller.alerts.update(caller.tenant_id, project_id, alert_id, caller.actor, threshold)
        )


async def _delete(request: Request, project_id: str | None, alert_id: str) -> DeletedObject:
    caller = await _authorize(request, WRITE_LIMITS)
    await caller.alerts.delete(caller.tenant_id, project_id, alert_id, caller.actor)
    return deleted(_object_of(project_id), alert_id)


async def _read(request: Request) -> Threshold:
    body = await read_body(request, SpendAlertRequest)
    given = (body.threshold_amount, body.threshold_micro_usd, body.threshold_percent)
    if sum(one is not None for one in given) != 1:
        raise InvalidValue(
            "Give one of 'threshold_amount', 'threshold_micro_usd' and 'threshold_percent'.",
            "threshold_amount",
        )
    amount = body.threshold_micro_usd
    if body.threshold_amount is not None:
        amount = body.threshold_amount * MICRO_USD_PER_CENT
    channel = body.notification_channel
    return Threshold(amount, body.threshold_percent, channel.recipients, channel.subject_prefix)


def alert_object(alert: SpendAlert) -> SpendAlertObject:
    channel: AlertChannel = {
        "type": "email",
        "recipients": list(alert.recipients),
        "subject_prefix": alert.subject_prefix,
    }
    return {
        "id": alert.id,
        "object": _object_of(alert.project_id),
        "project_id": alert.project_id,
        "currency": "USD",
        "interval": "month",
        "notification_channel": channel,
        "threshold_amount": None if alert.amount is None else alert.amount // MICRO_USD_PER_CENT,
        "threshold_micro_usd": alert.amount,
        "threshold_percent": alert.percent,
        "created_at": unix(alert.created_at),
        "updated_at": unix(alert.updated_at),
    }


def _object_of(project_id: str | None) -> AlertName:
    return "organization.spend_alert" if project_id is None else "project.spend_alert"
