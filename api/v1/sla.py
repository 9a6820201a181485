"""`GET /v1/sla/reports`: what a tenant was promised and what it got, for whoever holds its admin key."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from api.deps import READ_SLA, authenticate, services_of
from api.openapi import ERROR_RESPONSES
from api.pages import Month

router = APIRouter(prefix="/v1/sla", responses=ERROR_RESPONSES, tags=["SLA"])


@router.get("/reports", operation_id="retrieveSlaReport")
async def report(request: Request, month: Month = None) -> dict[str, Any]:
    """A month's report (`YYYY-MM`, UTC), by class; the month that runs when none is named."""
    caller = await authenticate(request, READ_SLA)
    return await services_of(request).sla_reports.report(caller.tenant_id, month)
