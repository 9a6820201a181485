"""Serves the routes of the service levels section: a month's report as a page and as JSON."""

from __future__ import annotations

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.navigation import SLA
from admin.service_levels.page import SlaPage
from admin.services import ConsoleServices
from admin.web.console import Console
from admin.web.principals import TenantUser
from sla.errors import InvalidMonth


class ServiceLevelRoutes:
    """Below `/sla`."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._sla = SlaPage(services.sla)

    def routes(self) -> list[Route]:
        view = self._console.view
        return [
            Route("/sla", view(self.show_levels, SLA.right), methods=["GET"]),
            Route("/sla/report.json", view(self.download, SLA.right), methods=["GET"]),
        ]

    async def show_levels(self, request: Request, principal: TenantUser) -> Response:
        month = request.query_params.get("month") or None
        try:
            report = await self._sla.gather(principal.tenant_id, month)
        except InvalidMonth as error:
            raise HTTPException(404, f"There's no report for this month: {error}.") from None
        return self._console.render(request, "sla.html", principal=principal, section=SLA.id, page=report)

    async def download(self, request: Request, principal: TenantUser) -> Response:
        """The document that the API serves."""
        try:
            report = await self._sla.report(principal.tenant_id, request.query_params.get("month") or None)
        except InvalidMonth as error:
            raise HTTPException(404, f"There's no report for this month: {error}.") from None
        disposition = f'attachment; filename="service-levels-{report["month"]}.json"'
        headers = {"content-disposition": disposition}
        return Response(msgspec.json.encode(report), media_type="application/json", headers=headers)
