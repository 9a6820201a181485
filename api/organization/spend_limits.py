"""`/v1/organization/spend_limit` and a project's: limits the spend in a calendar month (UTC), in cents.

A hard limit: requests above it are refused until the month ends.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from fastapi import Request

from api.authentication import READ_LIMITS, WRITE_LIMITS
from api.openapi.routing import Router, fails_with, json_body
from api.organization.admin_requests import AdminCaller, authenticated_admin, naming_fields, read_body
from api.organization.request_bodies import SpendLimitRequest
from api.organization.response_objects import RuleDeletedObject
from api.services import services_of
from billing.rates import MICRO_USD_PER_CENT
from tenants.errors import LimitNotFound, ProjectNotFound, QuotaUnavailable
from tenants.limits.kinds import Limit, Metric, Scope

Enforcement = Literal["inactive", "enforcing", "unknown"]


class SpendLimitEnforcement(TypedDict):
    status: Enforcement
    """Whether requests are refused now because the limit is reached."""


class SpendLimitObject(TypedDict):
    """How much can be spent in a calendar month (UTC). Past it, requests are refused until the month ends."""

    object: Literal["organization.spend_limit", "project.spend_limit"]
    currency: Literal["USD"]
    interval: Literal["month"]
    threshold_amount: int
    """Cents."""
    enforcement: SpendLimitEnforcement


router = Router(prefix="/v1/organization", tags=["Limits"])


@router.get("/spend_limit", operation_id="retrieveSpendLimit")
@fails_with(LimitNotFound("project", "proj_1", "", "spend_per_month"))
async def retrieve_spend_limit(request: Request) -> SpendLimitObject:
    """Retrieves how much the organization can spend in a month."""
    who = await authenticated_admin(request, READ_LIMITS)
    return await _shown(request, who, "tenant", who.tenant_id)


@router.post("/spend_limit", operation_id="updateSpendLimit", openapi_extra=json_body("SpendLimitRequest"))
async def update_spend_limit(request: Request) -> SpendLimitObject:
    """Sets how much the organization can spend in a month. It takes effect within a second, and can only be
    lower than the plan's.
    """
    who = await authenticated_admin(request, WRITE_LIMITS)
    return await _set(request, who, "tenant", who.tenant_id)


@router.delete("/spend_limit", operation_id="deleteSpendLimit")
@fails_with(LimitNotFound("project", "proj_1", "", "spend_per_month"))
async def delete_spend_limit(request: Request) -> RuleDeletedObject:
    """Deletes the organization's spend limit. Where the plan has one, it applies again."""
    who = await authenticated_admin(request, WRITE_LIMITS)
    return await _delete(who, "tenant", who.tenant_id)


@router.get("/projects/{project_id}/spend_limit", operation_id="retrieveProjectSpendLimit")
@fails_with(LimitNotFound("project", "proj_1", "", "spend_per_month"))
async def retrieve_project_spend_limit(request: Request, project_id: str) -> SpendLimitObject:
    """Retrieves how much the project can spend in a month."""
    who = await authenticated_admin(request, READ_LIMITS)
    return await _shown(request, who, "project", project_id)


@router.post(
    "/projects/{project_id}/spend_limit",
    operation_id="updateProjectSpendLimit",
    openapi_extra=json_body("SpendLimitRequest"),
)
@fails_with(ProjectNotFound("proj_1"))
async def update_project_spend_limit(request: Request, project_id: str) -> SpendLimitObject:
    """Sets how much the project can spend in a month. It takes effect within a second."""
    return await _set(request, await authenticated_admin(request, WRITE_LIMITS), "project", project_id)


@router.delete("/projects/{project_id}/spend_limit", operation_id="deleteProjectSpendLimit")
@fails_with(LimitNotFound("project", "proj_1", "", "spend_per_month"))
async def delete_project_spend_limit(request: Request, project_id: str) -> RuleDeletedObject:
    """Deletes the project's spend limit."""
    return await _delete(await authenticated_admin(request, WRITE_LIMITS), "project", project_id)


async def _shown(request: Request, who: AdminCaller, scope: Scope, scope_id: str) -> SpendLimitObject:
    """Raises LimitNotFound."""
    for limit in await who.accounts.limits.effective(who.tenant_id):
        spends = limit.metric == Metric.SPEND_PER_MONTH and not limit.model
        if spends and (limit.scope, limit.scope_id) == (scope, scope_id):
            return {
                "object": _object_of(scope),
                "currency": "USD",
                "interval": "month",
                "threshold_amount": limit.amount // MICRO_USD_PER_CENT,
                "enforcement": {"status": await _enforcement(request, who, limit)},
            }
    raise LimitNotFound(scope, scope_id, "", Metric.SPEND_PER_MONTH)


async def _enforcement(request: Request, who: AdminCaller, limit: Limit) -> Enforcement:
    """Returns whether the limit refuses requests now; `unknown` while Redis is unreachable."""
    try:
        states = await services_of(request).quotas.state(who.tenant_id, [limit])
    except QuotaUnavailable:
        return "unknown"
    remaining = states[0].remaining
    if remaining is None:
        return "unknown"
    return "inactive" if remaining else "enforcing"


async def _set(request: Request, who: AdminCaller, scope: Scope, scope_id: str) -> SpendLimitObject:
    body = await read_body(request, SpendLimitRequest)
    amount = body.threshold_amount * MICRO_USD_PER_CENT
    with naming_fields():
        await who.accounts.limits.set(
            who.tenant_id, who.actor, Limit(scope, scope_id, "", Metric.SPEND_PER_MONTH, amount)
        )
    return await _shown(request, who, scope, scope_id)


async def _delete(who: AdminCaller, scope: Scope, scope_id: str) -> RuleDeletedObject:
    await who.accounts.limits.delete(who.tenant_id, who.actor, scope, scope_id, "", Metric.SPEND_PER_MONTH)
    return {"object": f"{_object_of(scope)}.deleted", "deleted": True}


def _object_of(scope: Scope) -> Literal["organization.spend_limit", "project.spend_limit"]:
    return "organization.spend_limit" if scope == "tenant" else "project.spend_limit"
