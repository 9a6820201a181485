"""Serves the routes of the engines section: the live page, the part of it that is refreshed, and the JSON
report.
"""

from __future__ import annotations

import msgspec
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.navigation import ENGINES
from admin.operator.engines.page import EnginePages
from admin.services import ConsoleServices
from admin.web.console import Console
from admin.web.principals import Operator

HERE = ENGINES.path
MAX_KEY_LEN = 256

# Drawn every second. Safe beside a token, since nothing of the request is in them: it only says which engine.
_COMPRESSED = (Middleware(GZipMiddleware, minimum_size=4096, compresslevel=4),)


class EngineRoutes:
    """Below `/operator/engines`."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._pages = EnginePages(services.operation.engines, services.operation.adapter_names)

    def routes(self) -> list[Route]:
        view = self._console.operator_view
        return [
            Route(HERE, view(self.show), methods=["GET"], middleware=_COMPRESSED),
            Route(f"{HERE}/live", view(self.show_live), methods=["GET"], middleware=_COMPRESSED),
            Route(f"{HERE}/report.json", view(self.report), methods=["GET"], middleware=_COMPRESSED),
        ]

    async def show(self, request: Request, operator: Operator) -> Response:
        return await self._page(request, operator, "operator/engines.html")

    async def show_live(self, request: Request, operator: Operator) -> Response:
        """What the page's script puts in place of the part that changes."""
        return await self._page(request, operator, "operator/engines_live.html")

    async def report(self, request: Request, operator: Operator) -> Response:
        documents = {"object": "list", "data": await self._pages.documents()}
        return Response(msgspec.json.encode(documents), media_type="application/json")

    async def _page(self, request: Request, operator: Operator, template: str) -> Response:
        page = await self._pages.gather(request.query_params.get("engine", "")[:MAX_KEY_LEN])
        return self._console.render(request, template, principal=operator, section=ENGINES.id, page=page)
