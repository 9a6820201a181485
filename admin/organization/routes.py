"""Serves the settings of an organization: whether responses and conversations are stored."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.navigation import SETTINGS
from admin.services import ConsoleServices
from admin.web import authorization
from admin.web.console import Console
from admin.web.principals import TenantUser

_CHOICES = {"yes": True, "no": False}


class OrganizationRoutes:
    """Below `/settings`."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._retention = services.account.data_retention

    def routes(self) -> list[Route]:
        # The right of the API's call; the page asks for more.
        change = self._console.action(self.set_retention, "projects.write")
        return [
            Route(SETTINGS.path, self._console.view(self.show, SETTINGS.right), methods=["GET"]),
            Route(f"{SETTINGS.path}/data-retention", change, methods=["POST"]),
        ]

    async def show(self, request: Request, principal: TenantUser) -> Response:
        return self._console.render(
            request,
            "organization.html",
            principal=principal,
            section=SETTINGS.id,
            stores_nothing=await self._retention.stores_nothing(principal.tenant_id),
            response_days=principal.account.plan.response_days,
        )

    async def set_retention(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        authorization.require_owner(principal)
        stores_nothing = _CHOICES.get(form.get("stores_nothing", ""))
        if stores_nothing is None:
            raise HTTPException(400, "Choose whether responses and conversations are stored.")
        await self._retention.set(principal.tenant_id, stores_nothing, principal.acting(request))
        message = (
            "Nothing is stored from now on. What was stored is deleted within minutes."
            if stores_nothing
            else "Responses and conversations are stored again when requests ask for it."
        )
        return await self._console.redirect_with_message(request, principal, SETTINGS.path, message)
