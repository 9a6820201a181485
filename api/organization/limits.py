"""`/v1/organization/limits`: lists, sets and deletes an organization's limits, with their usage.

A limit's id is derived from what it limits, so that setting it again keeps the id.
"""

from __future__ import annotations

import hashlib
from typing import Literal, TypedDict

from fastapi import Request

from api.authentication import READ_LIMITS, WRITE_LIMITS
from api.errors import InvalidValue, RouteNotFound
from api.json_bodies import unix
from api.openapi.routing import Router, fails_with, json_body
from api.organization.admin_requests import AdminCaller, authenticated_admin, naming_fields, read_body
from api.organization.request_bodies import SetLimitRequest
from api.organization.response_objects import DeletedObject, deleted
from api.pagination import Page, Paged, page, position
from api.services import services_of
from tenants.errors import KeyNotFound, ProjectNotFound, QuotaUnavailable
from tenants.limits.kinds import Limit, Metric, Scope
from tenants.quotas.reservation import LimitState


class LimitObject(TypedDict):
    """A limit of the organization, a project or a key, and how much of it is used."""

    id: str
    object: Literal["organization.limit"]
    scope: Literal["organization", "project", "key"]
    project_id: str | None
    """The project of a project's limit."""
    api_key_id: str | None
    """The key of a key's limit."""
    model: str | None
    """The model that is limited; null for all models together."""
    metric: Metric
    """What is limited. Amounts of spend and balance are micro-USD."""
    amount: int
    used: int | None
    """What is used of it now, or null where that is not known."""
    held: int | None
    """What requests that are running may still use."""
    remaining: int | None
    resets_at: int | None
    """Unix seconds when `used` is 0 again, where it ever is."""


router = Router(prefix="/v1/organization/limits", tags=["Limits"])


@router.get("", operation_id="listLimits")
async def list_limits(request: Request, query: Paged) -> Page[LimitObject]:
    """Lists the limits that are set, and those of the plan that none replaces, with how much of each is
    used.
    """
    who = await authenticated_admin(request, READ_LIMITS)
    found = {limit_id(limit): limit for limit in await who.accounts.limits.effective(who.tenant_id)}
    ids = sorted(found, reverse=query.newest_first)
    last = position(ids, query.after)
    ids = ids[0 if last is None else last + 1 :]
    chosen = ids[: query.limit]
    shown = await shown_limits(request, who, [found[one] for one in chosen])
    return page(shown, query.limit, len(ids) > query.limit)


@router.put("", operation_id="setLimit", openapi_extra=json_body("SetLimitRequest"))
@fails_with(ProjectNotFound("proj_1"), KeyNotFound("key_1"))
async def set_limit(request: Request) -> LimitObject:
    """Sets a limit for the organization, a project or a key. It takes effect within a second. The
    organization's own limits can only be lower than those of its plan.
    """
    who = await authenticated_admin(request, WRITE_LIMITS)
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
@fails_with(RouteNotFound("there is no limit 'limit_1'"))
async def retrieve_limit(request: Request, limit_id: str) -> LimitObject:
    """Retrieves a limit."""
    who = await authenticated_admin(request, READ_LIMITS)
    limit = await _named(who, limit_id, await who.accounts.limits.effective(who.tenant_id))
    return (await shown_limits(request, who, [limit]))[0]


@router.delete("/{limit_id}", operation_id="deleteLimit")
@fails_with(RouteNotFound("there is no limit 'limit_1'"))
async def delete_limit(request: Request, limit_id: str) -> DeletedObject:
    """Deletes a limit. Where the plan has one, it applies again."""
    who = await authenticated_admin(request, WRITE_LIMITS)
    limit = await _named(who, limit_id, await who.accounts.limits.list(who.tenant_id))
    await who.accounts.limits.delete(
        who.tenant_id, who.actor, limit.scope, limit.scope_id, limit.model, limit.metric
    )
    return deleted("organization.limit", limit_id)


def limit_id(limit: Limit) -> str:
    """Returns the limit's id, which does not depend on its amount."""
    of = "\0".join((limit.scope, limit.scope_id, limit.model, limit.metric))
    return f"limit_{hashlib.sha256(of.encode()).hexdigest()[:26]}"


async def shown_limits(request: Request, who: AdminCaller, limits: list[Limit]) -> list[LimitObject]:
    """Returns limits with their usage, if Redis is reachable."""
    try:
        states = await services_of(request).quotas.state(who.tenant_id, limits)
    except QuotaUnavailable:
        states = []
    taken = {limit_id(state.limit): state for state in states}
    return [limit_object(limit, taken.get(limit_id(limit))) for limit in limits]


def limit_object(limit: Limit, state: LimitState | None) -> LimitObject:
    """Returns a limit's object. Rows in the database, such as adapters, are counted when one is added: such a
    limit has no state.
    """
    return {
        "id": limit_id(limit),
        "object": "organization.limit",
        "scope": "organization" if limit.scope == "tenant" else limit.scope,
        "project_id": limit.scope_id if limit.scope == "project" else None,
        "api_key_id": limit.scope_id if limit.scope == "key" else None,
        "model": limit.model or None,
        "metric": limit.metric,
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
