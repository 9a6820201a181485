"""Where an operator begins. Owns the path."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.navigation import OPERATOR_SECTIONS
from admin.web.console import OPERATOR_HOME, Frame, Operator


class HomeRoutes:
    """`/operator`."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def routes(self) -> list[Route]:
        return [Route(OPERATOR_HOME, self._frame.operating(self.lead_on), methods=["GET"])]

    async def lead_on(self, request: Request, operator: Operator) -> Response:
        return self._frame.to(request, OPERATOR_SECTIONS[0].path)
