"""`GET /v1/organization/usage/export`: exports a tenant's ledger as a file, for admin keys.

Reads the query string and sets the headers; `billing.reports` produces the file.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from api.authentication import READ_USAGE, authenticate
from api.file_responses import attachment, beginning_with
from api.openapi.routing import Router
from api.services import services_of
from api.v1.report_query import EndTime, Repeated, ReportQuery, Time, among, matching, repeated
from billing.reports.buckets import USAGE_WIDTHS
from billing.reports.exports import FORMATS
from billing.reports.grouping import COLUMNS, slice_of

router = Router(prefix="/v1/organization/usage", tags=["Usage"])

_BINARY = {"schema": {"type": "string", "format": "binary"}}
_FILES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/csv": _BINARY, "application/vnd.apache.parquet": _BINARY}}
}


@router.get("/export", operation_id="usageExport", response_class=Response, responses=_FILES)
async def export(
    request: Request,
    start_time: Time,
    end_time: EndTime = None,
    format: Annotated[str, among(FORMATS)] = "csv",
    bucket_width: Annotated[str | None, among(USAGE_WIDTHS)] = None,
    group_by: Annotated[Repeated, repeated("group_by", tuple(COLUMNS))] = None,
    api_key_ids: Annotated[Repeated, matching("api_key_ids")] = None,
    models: Annotated[Repeated, matching("models")] = None,
    project_ids: Annotated[Repeated, matching("project_ids")] = None,
    user_ids: Annotated[Repeated, matching("user_ids")] = None,
    adapter_ids: Annotated[Repeated, matching("adapter_ids")] = None,
    service_tiers: Annotated[Repeated, matching("service_tiers")] = None,
) -> Response:
    """Exports every request and charge as a file, or with `group_by` or `bucket_width` their sums. With
    filters, charges are left out; an empty value selects rows without one. The connection is closed early if
    the export fails.
    """
    caller = await authenticate(request, READ_USAGE)
    query = ReportQuery(request)
    export = await services_of(request).usage.exports.open(
        caller.tenant_id,
        format=format,
        start_time=start_time,
        end_time=end_time,
        bucket_width=bucket_width,
        group_by=query.values("group_by", group_by) or (),
        slice=slice_of(
            api_key_ids=query.values("api_key_ids", api_key_ids),
            models=query.values("models", models),
            project_ids=query.values("project_ids", project_ids),
            user_ids=query.values("user_ids", user_ids),
            adapter_ids=query.values("adapter_ids", adapter_ids),
            service_tiers=query.values("service_tiers", service_tiers),
        ),
    )
    first = await anext(export.pieces)  # an unreachable database fails before the status is sent
    return StreamingResponse(
        beginning_with(first, export.pieces),
        media_type=export.media_type,
        headers=attachment(export.filename),
    )
