"""`GET /v1/organization/costs`: reports what a tenant's usage costs, for admin keys.

Reads the query string; `billing.reports.costs` computes the report.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Request

from api.authentication import READ_USAGE, authenticate
from api.openapi.routing import Router
from api.services import services_of
from api.v1.report_query import EndTime, Repeated, ReportQuery, Time, among, at_most, matching, repeated
from billing.reports.buckets import COST_WIDTHS, BucketPage
from billing.reports.costs import GROUP_BYS, CostResult

router = Router(prefix="/v1/organization", tags=["Usage"])


@router.get("/costs", operation_id="costs")
async def costs(
    request: Request,
    start_time: Time,
    end_time: EndTime = None,
    bucket_width: Annotated[str, among(COST_WIDTHS)] = "1d",
    limit: Annotated[int | None, at_most(max(one.max_limit for one in COST_WIDTHS.values()))] = None,
    page: str | None = None,
    group_by: Annotated[Repeated, repeated("group_by", GROUP_BYS)] = None,
    api_key_ids: Annotated[Repeated, matching("api_key_ids")] = None,
    project_ids: Annotated[Repeated, matching("project_ids")] = None,
    line_items: Annotated[Repeated, matching("line_items")] = None,
) -> BucketPage[CostResult]:
    """Reports what usage cost, by day and by whatever `group_by` names. Storage and other charges are of no
    project and no key.
    """
    caller = await authenticate(request, READ_USAGE)
    query = ReportQuery(request)
    return await services_of(request).usage.costs.page(
        caller.tenant_id,
        start_time=start_time,
        end_time=end_time,
        bucket_width=bucket_width,
        limit=limit,
        page=page,
        group_by=query.values("group_by", group_by) or (),
        api_key_ids=query.values("api_key_ids", api_key_ids),
        project_ids=query.values("project_ids", project_ids),
        line_items=query.values("line_items", line_items),
    )
