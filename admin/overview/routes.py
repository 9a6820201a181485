"""Serves the overview page."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.navigation import OVERVIEW
from admin.overview.page import OverviewPage
from admin.services import ConsoleServices
from admin.web.console import Console
from admin.web.principals import TenantUser


class OverviewRoutes:
    """`/`."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._page = OverviewPage(
            usage=services.usage.slices,
            levels=services.sla,
            catalogue=services.adapters.catalogue,
            keys=services.account.keys,
            limits=services.account.limits,
            credits=services.billing.credits,
            refused=services.refused,
        )

    def routes(self) -> list[Route]:
        return [Route("/", self._console.view(self.show), methods=["GET"])]

    async def show(self, request: Request, principal: TenantUser) -> Response:
        overview = await self._page.gather(principal.tenant_id, principal.may)
        return self._console.render(
            request, "overview.html", principal=principal, section=OVERVIEW.id, page=overview
        )
