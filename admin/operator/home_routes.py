"""Redirects an operator to their first section."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.navigation import OPERATOR_SECTIONS
from admin.web.console import Console
from admin.web.principals import Operator
from admin.web.rendering import OPERATOR_HOME


class HomeRoutes:
    """`/operator`."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def routes(self) -> list[Route]:
        return [Route(OPERATOR_HOME, self._console.operator_view(self.lead_on), methods=["GET"])]

    async def lead_on(self, request: Request, operator: Operator) -> Response:
        return self._console.redirect(request, OPERATOR_SECTIONS[0].path)
