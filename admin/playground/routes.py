"""Serves the routes of the playground: its page, and chat responses streamed through the user's session.

The browser holds no API key: the user's own limits and rights apply.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin import snippets
from admin.navigation import PLAYGROUND
from admin.playground.page import PlaygroundPage, prices_of
from admin.services import ConsoleServices
from admin.web.console import Console
from admin.web.principals import TenantUser
from admin.web.request_info import origin_of
from tenants.roles import Right

_RIGHT: Right = "adapters.write"
"""Requests cost money, so read-only roles may not send them."""


class PlaygroundRoutes:
    """Below `/playground`."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._playground = services.playground
        self._pages = PlaygroundPage(services.models)

    def routes(self) -> list[Route]:
        return [
            Route("/playground", self._console.view(self.show, _RIGHT), methods=["GET"]),
            Route(
                "/playground/chat",
                self._console.script_action(self.chat, _RIGHT, members_alone=True),
                methods=["POST"],
            ),
        ]

    async def show(self, request: Request, principal: TenantUser) -> Response:
        terms = await self._playground.terms(principal.tenant_id, principal.account.user_id)
        wanted, versus = (request.query_params.get(name) for name in ("model", "versus"))
        stage = await self._pages.gather(principal.tenant_id, wanted, versus)
        return self._console.render(
            request,
            "playground.html",
            principal=principal,
            section=PLAYGROUND.id,
            stage=stage,
            prices=prices_of(*terms),
            origin=origin_of(request),
            snippets=snippets.ask(origin_of(request), stage.chosen),
        )

    async def chat(self, request: Request, principal: TenantUser) -> Response:
        """Streams what the API's chat completions do: the body is one."""
        return await self._playground.chat(request, principal.tenant_id, principal.account.user_id)
