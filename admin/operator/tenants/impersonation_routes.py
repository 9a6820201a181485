"""Opens a tenant\'s console for an operator, and leaves it again."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.services import ConsoleServices
from admin.web import security
from admin.web.console import Console
from admin.web.principals import Operator
from admin.web.rendering import OPERATOR_HOME
from admin.web.sessions import Impersonation
from tenants.errors import TenantNotFound, UserNotFound


class ImpersonationRoutes:
    """Into a console below `/operator/tenants`, out of it at `/operator/leave`."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._impersonations = services.operation.impersonations

    def routes(self) -> list[Route]:
        action = self._console.operator_action
        return [
            Route("/operator/tenants/{tenant}/open", action(self.open, always=True), methods=["POST"]),
            Route("/operator/leave", action(self.leave, always=True), methods=["POST"]),
        ]

    async def open(self, request: Request, operator: Operator, form: dict[str, str]) -> Response:
        is_full = form.get("access") == "full"
        if is_full and not operator.may_change:
            raise HTTPException(
                403, "Your operator account is read-only, so you can only open a console read-only."
            )
        minutes = form.get("minutes", "")
        if not (minutes.isascii() and minutes.isdecimal() and len(minutes) < 5):
            raise HTTPException(400, "Enter the duration in whole minutes.")
        tenant_id, user_id = request.path_params["tenant"], form.get("user", "")
        try:
            begun = await self._impersonations.begin(
                operator.acting(request),
                tenant_id,
                user_id,
                is_full=is_full,
                reason=form.get("reason", ""),
                lasting=timedelta(minutes=int(minutes)),
            )
        except ValueError as error:
            raise HTTPException(422, f"The console wasn't opened: {error}.") from None
        taken = Impersonation(tenant_id, user_id, is_full, begun.ends_at.timestamp(), begun.reason)
        return await self._go(request, operator, taken, "/")

    async def leave(self, request: Request, operator: Operator, form: dict[str, str]) -> Response:
        taken = operator.session.impersonation
        if taken is None:
            return self._console.redirect(request, OPERATOR_HOME)
        with suppress(TenantNotFound, UserNotFound):  # since: when it would have ended is on record
            await self._impersonations.end(operator.acting(request), taken.tenant_id, taken.user_id)
        return await self._go(request, operator, None, f"{OPERATOR_HOME}/tenants/{taken.tenant_id}")

    async def _go(
        self, request: Request, operator: Operator, taken: Impersonation | None, path: str
    ) -> Response:
        opened = await self._console.sessions.impersonate(operator.opened, taken)
        response = self._console.redirect(request, path)
        security.set_session(request, response, opened.id)
        return response
