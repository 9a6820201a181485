"""`GET /v1/sla/reports`: reports promised and delivered service levels of a tenant, for admin keys."""

from __future__ import annotations

from fastapi import Request

from api.authentication import READ_SLA, authenticate
from api.openapi.routing import Router
from api.pagination import Month
from api.services import services_of
from sla.service import SlaReport

router = Router(prefix="/v1/sla", tags=["SLA"])


@router.get("/reports", operation_id="retrieveSlaReport")
async def report(request: Request, month: Month = None) -> SlaReport:
    """Reports, for a month and by service tier, what was promised and what was delivered."""
    caller = await authenticate(request, READ_SLA)
    return await services_of(request).sla_reports.report(caller.tenant_id, month)
