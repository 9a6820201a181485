"""Serves the capacity page."""

from __future__ import annotations

from datetime import UTC, datetime

from redis.exceptions import RedisError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.navigation import CAPACITY
from admin.operator.capacity import page
from admin.services import ConsoleServices
from admin.web.console import Console
from admin.web.principals import Operator


class CapacityRoutes:
    """`/operator/capacity`."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._capacity = services.operation.capacity
        self._engines = services.operation.engines

    def routes(self) -> list[Route]:
        return [Route(CAPACITY.path, self._console.operator_view(self.show), methods=["GET"])]

    async def show(self, request: Request, operator: Operator) -> Response:
        outlooks = await self._capacity.outlooks()
        try:
            reports, advice, is_live = await self._engines.look(), await self._capacity.advice(), True
        except RedisError:
            reports, advice, is_live = [], {}, False
        return self._console.render(
            request,
            "operator/capacity.html",
            principal=operator,
            section=CAPACITY.id,
            page=page.capacity(outlooks, reports, advice, datetime.now(UTC)),
            is_live=is_live,
        )
