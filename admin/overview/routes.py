"""The first page over HTTP. Changes nothing."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.navigation import OVERVIEW
from admin.overview.page import OverviewPage
from admin.services import ConsoleServices
from admin.web.console import Frame
from admin.web.principals import Visitor


class OverviewRoutes:
    """`/`."""

    def __init__(self, frame: Frame, services: ConsoleServices) -> None:
        self._frame = frame
        self._page = OverviewPage(
            usage=services.usage.slices,
            levels=services.sla,
            catalogue=services.adapters.catalogue,
            keys=services.account.keys,
            limits=services.account.limits,
            credits=services.billing.credits,
        )

    def routes(self) -> list[Route]:
        return [Route("/", self._frame.serving(self.show), methods=["GET"])]

    async def show(self, request: Request, visitor: Visitor) -> Response:
        shown = await self._page.gather(visitor.tenant_id, visitor.may)
        return self._frame.page(request, "overview.html", visitor=visitor, section=OVERVIEW.id, page=shown)
