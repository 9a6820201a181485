"""`GET /v1/organization/usage/completions`: reports a tenant's usage, for admin keys.

Reads the query string; `billing.service` computes the report.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Request

from api.authentication import READ_USAGE, authenticate
from api.openapi.routing import Router
from api.services import services_of
from api.v1.report_query import EndTime, Repeated, ReportQuery, Time, among, at_most, matching, repeated
from billing.reports.buckets import USAGE_WIDTHS, BucketPage
from billing.service import GROUP_BYS, UsageResult

router = Router(prefix="/v1/organization/usage", tags=["Usage"])


@router.get("/completions", operation_id="usageCompletions")
async def completions(
    request: Request,
    start_time: Time,
    end_time: EndTime = None,
    bucket_width: Annotated[str, among(USAGE_WIDTHS)] = "1d",
    limit: Annotated[int | None, at_most(max(one.max_limit for one in USAGE_WIDTHS.values()))] = None,
    batch: bool | None = None,
    page: str | None = None,
    group_by: Annotated[Repeated, repeated("group_by", GROUP_BYS)] = None,
    api_key_ids: Annotated[Repeated, matching("api_key_ids")] = None,
    models: Annotated[Repeated, matching("models")] = None,
    project_ids: Annotated[Repeated, matching("project_ids")] = None,
    user_ids: Annotated[Repeated, matching("user_ids")] = None,
    adapter_ids: Annotated[Repeated, matching("adapter_ids")] = None,
) -> BucketPage[UsageResult]:
    """Reports how many tokens and requests were used, by minute, hour or day and by whatever `group_by`
    names.
    """
    caller = await authenticate(request, READ_USAGE)
    query = ReportQuery(request)
    return await services_of(request).usage.completions(
        caller.tenant_id,
        start_time=start_time,
        end_time=end_time,
        bucket_width=bucket_width,
        limit=limit,
        batch=batch,
        page=page,
        group_by=query.values("group_by", group_by) or (),
        api_key_ids=query.values("api_key_ids", api_key_ids),
        models=query.values("models", models),
        project_ids=query.values("project_ids", project_ids),
        user_ids=query.values("user_ids", user_ids),
        adapter_ids=query.values("adapter_ids", adapter_ids),
    )
