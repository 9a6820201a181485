"""`/v1/organization/spend_limit`, and a project's: how much may be spent in a calendar month (UTC), in cents.

Hard: past it, requests are refused until the month is over.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from api.deps import READ_LIMITS, WRITE_LIMITS, services_of
from api.openapi import ERROR_RESPONSES, json_body
from api.organization.bodies import SpendLimitRequest
from api.organization.requests import AdminCaller, asking, naming_fields, read_body
from billing.rates import MICRO_USD_PER_CENT
from tenants.errors import LimitNotFound, QuotaUnavailable
from tenants.limits.kinds import Limit, Metric, Scope

router = APIRouter(prefix="/v1/organization", responses=ERROR_RESPONSES, tags=["Limits"])


@router.get("/spend_limit", operation_id="retrieveSpendLimit")
async def retrieve_spend_limit(request: Request) -> dict[str, Any]:
    who = await asking(request, READ_LIMITS)
    return await _shown(request, who, "tenant", who.tenant_id)


@router.post("/spend_limit", operation_id="updateSpendLimit", openapi_extra=json_body("SpendLimitRequest"))
async def update_spend_limit(request: Request) -> dict[str, Any]:
    """Set it, in effect within a second. It can only be lower than the plan's, where that has one."""
    who = await asking(request, WRITE_LIMITS)
    return await _set(request, who, "tenant", who.tenant_id)


@router.delete("/spend_limit", operation_id="deleteSpendLimit")
async def delete_spend_limit(request: Request) -> dict[str, Any]:
    who = await asking(request, WRITE_LIMITS)
    return await _delete(who, "tenant", who.tenant_id)


@router.get("/projects/{project_id}/spend_limit", operation_id="retrieveProjectSpendLimit")
async def retrieve_project_spend_limit(request: Request, project_id: str) -> dict[str, Any]:
    who = await asking(request, READ_LIMITS)
    return await _shown(request, who, "project", project_id)


@router.post(
    "/projects/{project_id}/spend_limit",
    operation_id="updateProjectSpendLimit",
    openapi_extra=json_body("SpendLimitRequest"),
)
async def update_project_spend_limit(request: Request, project_id: str) -> dict[str, Any]:
    """Set it, in effect within a second."""
    return await _set(request, await asking(request, WRITE_LIMITS), "project", project_id)


@router.delete("/projects/{project_id}/spend_limit", operation_id="deleteProjectSpendLimit")
async def delete_project_spend_limit(request: Request, project_id: str) -> dict[str, Any]:
    return await _delete(await asking(request, WRITE_LIMITS), "project", project_id)


async def _shown(request: Request, who: AdminCaller, scope: Scope, scope_id: str) -> dict[str, Any]:
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


async def _enforcement(request: Request, who: AdminCaller, limit: Limit) -> str:
    """Whether it refuses requests now; `unknown` while that cannot be looked up."""
    try:
        states = await services_of(request).quotas.state(who.tenant_id, [limit])
    except QuotaUnavailable:
        return "unknown"
    remaining = states[0].remaining
    if remaining is None:
        return "unknown"
    return "inactive" if remaining else "enforcing"


async def _set(request: Request, who: AdminCaller, scope: Scope, scope_id: str) -> dict[str, Any]:
    body = await read_body(request, SpendLimitRequest)
    amount = body.threshold_amount * MICRO_USD_PER_CENT
    with naming_fields():
        await who.accounts.limits.set(
            who.tenant_id, who.actor, Limit(scope, scope_id, "", Metric.SPEND_PER_MONTH, amount)
        )
    return await _shown(request, who, scope, scope_id)


async def _delete(who: AdminCaller, scope: Scope, scope_id: str) -> dict[str, Any]:
    await who.accounts.limits.delete(who.tenant_id, who.actor, scope, scope_id, "", Metric.SPEND_PER_MONTH)
    return {"object": f"{_object_of(scope)}.deleted", "deleted": True}


def _object_of(scope: Scope) -> str:
    return "organization.spend_limit" if scope == "tenant" else "project.spend_limit"
