"""`/v1/organization/projects/{project_id}/rate_limits`: limits a project's requests per minute or day.

In the format of OpenAI's client: one entry per model, and one for all models together. The same limits, and
those of other scopes, are in `/v1/organization/limits`.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from fastapi import Query, Request

from api.authentication import READ_LIMITS, WRITE_LIMITS
from api.errors import InvalidValue, RouteNotFound
from api.openapi.routing import Router, fails_with, json_body
from api.organization.admin_requests import AdminCaller, authenticated_admin, naming_fields, read_body
from api.organization.request_bodies import RateLimitRequest
from api.pagination import Cursor, Page, page, position
from api.services import services_of
from tenants.errors import ProjectNotFound
from tenants.limits.kinds import MAX_RATE, Limit, Metric


class RateLimitObject(TypedDict):
    """The rate limits of a project for one model, or for all models together."""

    id: str
    object: Literal["project.rate_limit"]
    model: str
    """The model's name; `*` for all models together."""
    max_requests_per_1_minute: int
    """The largest number there is where nothing is limited."""
    max_tokens_per_1_minute: int
    max_requests_per_1_day: int | None


router = Router(prefix="/v1/organization/projects/{project_id}/rate_limits", tags=["Limits"])

_PREFIX = "rl-"
ALL = "*"
"""All models together."""
FIELDS = {
    "max_requests_per_1_minute": Metric.REQUESTS_PER_MINUTE,
    "max_tokens_per_1_minute": Metric.TOKENS_PER_MINUTE,
    "max_requests_per_1_day": Metric.REQUESTS_PER_DAY,
}


@router.get("", operation_id="listRateLimits")
@fails_with(ProjectNotFound("proj_1"))
async def list_rate_limits(
    request: Request,
    project_id: str,
    after: Cursor = None,
    before: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 100,
) -> Page[RateLimitObject]:
    """Lists the project's rate limits: of all models together, each base model, all its adapters, and every
    model that has its own.
    """
    who = await authenticated_admin(request, READ_LIMITS)
    if after is not None and before is not None:
        raise InvalidValue("Give either 'after' or 'before'.", "before")
    of_project, of_all = await _limits(who, project_id)
    of_bases = {model for pool in services_of(request).pools for model in (pool.name, f"{pool.name}:*")}
    ids = [_PREFIX + model for model in sorted({ALL, *of_bases, *of_project})]
    first, end = position(ids, after), position(ids, before, "before")
    ids = ids[0 if first is None else first + 1 : end]
    chosen = ids[-limit:] if before is not None else ids[:limit]
    shown = [_object(one.removeprefix(_PREFIX), of_project, of_all) for one in chosen]
    return page(shown, limit, len(ids) > limit)


@router.post("/{rate_limit_id}", operation_id="updateRateLimit", openapi_extra=json_body("RateLimitRequest"))
@fails_with(ProjectNotFound("proj_1"), RouteNotFound("there is no rate limit 'x'"))
async def update_rate_limit(request: Request, project_id: str, rate_limit_id: str) -> RateLimitObject:
    """Sets rate limits of the project for one model. They take effect within a second. Delete one with
    `DELETE /v1/organization/limits/{limit_id}`.
    """
    who = await authenticated_admin(request, WRITE_LIMITS)
    body = await read_body(request, RateLimitRequest)
    if not rate_limit_id.startswith(_PREFIX):
        raise RouteNotFound(f"there is no rate limit {rate_limit_id[:100]!r}")
    model = rate_limit_id.removeprefix(_PREFIX)
    for field, metric in FIELDS.items():
        amount = getattr(body, field)
        if amount is None:
            continue
        limit = Limit("project", project_id, "" if model == ALL else model, metric, amount)
        with naming_fields():
            await who.accounts.limits.set(who.tenant_id, who.actor, limit)
    return _object(model, *await _limits(who, project_id))


async def _limits(
    who: AdminCaller, project_id: str
) -> tuple[dict[str, dict[Metric, int]], dict[Metric, int]]:
    """Returns the project's limits by model, and the organization's. Raises ProjectNotFound."""
    await who.accounts.projects.get(who.tenant_id, project_id)
    of_project: dict[str, dict[Metric, int]] = {}
    of_all: dict[Metric, int] = {}
    for limit in await who.accounts.limits.effective(who.tenant_id):
        if limit.metric not in FIELDS.values():
            continue
        if limit.scope == "project" and limit.scope_id == project_id:
            of_project.setdefault(limit.model or ALL, {})[limit.metric] = limit.amount
        elif limit.scope == "tenant" and not limit.model:
            of_all[limit.metric] = limit.amount
    return of_project, of_all


def _object(
    model: str, of_project: dict[str, dict[Metric, int]], of_all: dict[Metric, int]
) -> RateLimitObject:
    """Returns the limits in force: the project's own, else the organization's. OpenAI's client expects a
    number where nothing is limits: the largest there can be.
    """
    amounts = of_all | of_project.get(model, {})
    return {
        "id": f"{_PREFIX}{model}",
        "object": "project.rate_limit",
        "model": model,
        "max_requests_per_1_minute": amounts.get(Metric.REQUESTS_PER_MINUTE, MAX_RATE),
        "max_tokens_per_1_minute": amounts.get(Metric.TOKENS_PER_MINUTE, MAX_RATE),
        "max_requests_per_1_day": amounts.get(Metric.REQUESTS_PER_DAY),
    }
