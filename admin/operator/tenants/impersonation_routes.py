"""How an operator gets into a tenant's console, and out of it. Owns the paths and the sessions' part; what is
on record of it is `tenants.operators`'.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.services import ConsoleServices
from admin.web import security
from admin.web.console import OPERATOR_HOME, Frame, Operator
from admin.web.sessions import Impersonation
from tenants.errors import TenantNotFound, UserNotFound


class ImpersonationRoutes:
    """Into a console below `/operator/tenants`, out of it at `/operator/leave`."""

    def __init__(self, frame: Frame, services: ConsoleServices) -> None:
        self._frame = frame
        self._impersonations = services.operation.impersonations

    def routes(self) -> list[Route]:
        changing = self._frame.changing_service
        return [
            Route("/operator/tenants/{tenant}/open", changing(self.open, always=True), methods=["POST"]),
            Route("/operator/leave", changing(self.leave, always=True), methods=["POST"]),
        ]

    async def open(self, request: Request, operator: Operator, form: dict[str, str]) -> Response:
        is_full = form.get("access") == "full"
        if is_full and not operator.may_change:
            raise HTTPException(403, "You look on: you can open a console read-only.")
        minutes = form.get("minutes", "")
        if not (minutes.isascii() and minutes.isdecimal() and len(minutes) < 5):
            raise HTTPException(400, "For how long is a whole number of minutes.")
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
            raise HTTPException(422, f"Nothing was opened: {error}.") from None
        taken = Impersonation(tenant_id, user_id, is_full, begun.ends_at.timestamp(), begun.reason)
        return await self._go(request, operator, taken, "/")

    async def leave(self, request: Request, operator: Operator, form: dict[str, str]) -> Response:
        taken = operator.session.impersonation
        if taken is None:
            return self._frame.to(request, OPERATOR_HOME)
        with suppress(TenantNotFound, UserNotFound):  # since: when it would have ended is on record
            await self._impersonations.end(operator.acting(request), taken.tenant_id, taken.user_id)
        return await self._go(request, operator, None, f"{OPERATOR_HOME}/tenants/{taken.tenant_id}")

    async def _go(
        self, request: Request, operator: Operator, taken: Impersonation | None, path: str
    ) -> Response:
        opened = await self._frame.sessions.impersonate(operator.opened, taken)
        response = self._frame.to(request, path)
        security.set_session(request, response, opened.id)
        return response
