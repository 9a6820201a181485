"""`/v1/organization/limits`: every limit that holds in an organisation, and how much of each is taken.

Owns the ids of limits: what a limit is of, so that setting it again is the same limit.
"""

from __future__ import annotations

import hashlib
from typing import Any

from fastapi import APIRouter, Request

from api.deps import READ_LIMITS, WRITE_LIMITS, services_of
from api.errors import InvalidValue, RouteNotFound
from api.json_bodies import unix
from api.openapi import ERROR_RESPONSES, json_body
from api.organization.bodies import SetLimitRequest
from api.organization.objects import deleted
from api.organization.requests import AdminCaller, asking, naming_fields, read_body
from api.pages import Paged, page, position
from tenants.errors import QuotaUnavailable
from tenants.limits.kinds import Limit, Metric, Scope
from tenants.quotas.reservation import LimitState

router = APIRouter(prefix="/v1/organization/limits", responses=ERROR_RESPONSES, tags=["Limits"])


@router.get("", operation_id="listLimits")
async def list_limits(request: Request, query: Paged) -> dict[str, Any]:
    """Those that were set, and those of the plan that none stands in place of; in the order of their ids."""
    who = await asking(request, READ_LIMITS)
    found = {limit_id(limit): limit for limit in await who.accounts.limits.effective(who.tenant_id)}
    ids = sorted(found, reverse=query.newest_first)
    last = position(ids, query.after)
    ids = ids[0 if last is None else last + 1 :]
    chosen = ids[: query.limit]
    shown = await shown_limits(request, who, [found[one] for one in chosen])
    return page(shown, query.limit) | {"has_more": len(ids) > query.limit}


@router.put("", operation_id="setLimit", openapi_extra=json_body("SetLimitRequest"))
async def set_limit(request: Request) -> dict[str, Any]:
    """Limit the organisation, a project or a key, in effect within a second. The organisation's own limits
    can only be lower than its plan's.
    """
    who = await asking(request, WRITE_LIMITS)
    body = await read_body(request, SetLimitRequest)
    if body.metric not in Metric.__members__.values():
        raise InvalidValue(f"'metric' must be one of {', '.join(Metric)}.", "metric")
    if body.project_id is not None and body.api_key_id is not None:
        raise InvalidValue("Give either 'project_id' or 'api_key_id'.", "api_key_id")
    scope: Scope = "tenant"
    scope_id = who.tenant_id
    if body.project_id is not None:
        scope, scope_id = "project", body.project_id
    elif body.api_key_id is not None:
        scope, scope_id = "key", body.api_key_id
    limit = Limit(scope, scope_id, body.model, Metric(body.metric), body.amount)
    with naming_fields():
        await who.accounts.limits.set(who.tenant_id, who.actor, limit)
    return (await shown_limits(request, who, [limit]))[0]


@router.get("/{limit_id}", operation_id="retrieveLimit")
async def retrieve_limit(request: Request, limit_id: str) -> dict[str, Any]:
    who = await asking(request, READ_LIMITS)
    limit = await _named(who, limit_id, await who.accounts.limits.effective(who.tenant_id))
    return (await shown_limits(request, who, [limit]))[0]


@router.delete("/{limit_id}", operation_id="deleteLimit")
async def delete_limit(request: Request, limit_id: str) -> dict[str, Any]:
    """Take a limit away that was set. Where the plan has one, that holds again."""
    who = await asking(request, WRITE_LIMITS)
    limit = await _named(who, limit_id, await who.accounts.limits.list(who.tenant_id))
    await who.accounts.limits.delete(
        who.tenant_id, who.actor, limit.scope, limit.scope_id, limit.model, limit.metric
    )
    return deleted("organization.limit", limit_id)


def limit_id(limit: Limit) -> str:
    """The same for the same limit, whatever its amount."""
    of = "\0".join((limit.scope, limit.scope_id, limit.model, limit.metric))
    return f"limit_{hashlib.sha256(of.encode()).hexdigest()[:26]}"


async def shown_limits(request: Request, who: AdminCaller, limits: list[Limit]) -> list[dict[str, Any]]:
    """With how much of them is taken, as far as that can be looked up just now."""
    try:
        states = await services_of(request).quotas.state(who.tenant_id, limits)
    except QuotaUnavailable:
        states = []
    taken = {limit_id(state.limit): state for state in states}
    return [limit_object(limit, taken.get(limit_id(limit))) for limit in limits]


def limit_object(limit: Limit, state: LimitState | None) -> dict[str, Any]:
    """What lies in the database, such as adapters, is counted when something is added to it: it has no
    state.
    """
    return {
        "id": limit_id(limit),
        "object": "organization.limit",
        "scope": "organization" if limit.scope == "tenant" else limit.scope,
        "project_id": limit.scope_id if limit.scope == "project" else None,
        "api_key_id": limit.scope_id if limit.scope == "key" else None,
        "model": limit.model or None,
        "metric": limit.metric.value,
        "amount": limit.amount,
        "used": None if state is None else state.used,
        "held": None if state is None else state.held,
        "remaining": None if state is None else state.remaining,
        "resets_at": None if state is None else unix(state.resets_at),
    }


async def _named(who: AdminCaller, wanted: str, limits: list[Limit]) -> Limit:
    for limit in limits:
        if limit_id(limit) == wanted:
            return limit
    raise RouteNotFound(f"there is no limit {wanted[:100]!r}")
