"""`GET /v1/organization/usage/completions`: what a tenant used, for whoever holds its admin key.

Owns reading the query string. What a report is, and which questions it answers, is `billing.service`'s.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from api.deps import READ_USAGE, authenticate, services_of
from api.errors import UnsupportedParameter
from api.openapi import ERROR_RESPONSES

router = APIRouter(prefix="/v1/organization/usage", responses=ERROR_RESPONSES, tags=["Usage"])

_SINGLE = ("start_time", "end_time", "bucket_width", "limit", "batch", "page")
_REPEATED = ("group_by", "api_key_ids", "models", "project_ids", "user_ids")
_KNOWN = frozenset(_SINGLE) | frozenset(_REPEATED) | frozenset(f"{name}[]" for name in _REPEATED)

Repeated = list[str] | None


@router.get("/completions", operation_id="usageCompletions")
async def completions(
    request: Request,
    start_time: int,
    end_time: int | None = None,
    bucket_width: str = "1d",
    limit: int | None = None,
    batch: bool | None = None,
    page: str | None = None,
    group_by: Annotated[Repeated, Query(alias="group_by[]")] = None,
    api_key_ids: Annotated[Repeated, Query(alias="api_key_ids[]")] = None,
    models: Annotated[Repeated, Query(alias="models[]")] = None,
    project_ids: Annotated[Repeated, Query(alias="project_ids[]")] = None,
    user_ids: Annotated[Repeated, Query(alias="user_ids[]")] = None,
) -> dict[str, Any]:
    """A page of time buckets. Repeated parameters are taken with and without the brackets of the stock
    client.
    """
    caller = await authenticate(request, READ_USAGE)
    query = request.query_params
    for name in query:
        if name not in _KNOWN:
            raise UnsupportedParameter(f"Unsupported parameter: '{name[:200]}'.", name[:200])

    def repeated(name: str, bracketed: Repeated) -> Repeated:
        return ([*(bracketed or ()), *query.getlist(name)]) or None

    return await services_of(request).usage.completions(
        caller.tenant_id,
        start_time=start_time,
        end_time=end_time,
        bucket_width=bucket_width,
        limit=limit,
        batch=batch,
        page=page,
        group_by=repeated("group_by", group_by) or (),
        api_key_ids=repeated("api_key_ids", api_key_ids),
        models=repeated("models", models),
        project_ids=repeated("project_ids", project_ids),
        user_ids=repeated("user_ids", user_ids),
    )
