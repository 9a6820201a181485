"""Serves the routes of a tenant's audit log: entries by filter, and verification of the hash chain."""

from __future__ import annotations

from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.audit import page as log
from admin.audit.page import AuditPage, Entries
from admin.navigation import AUDIT
from admin.services import ConsoleServices
from admin.web import form_errors
from admin.web.console import Console
from admin.web.principals import TenantUser


class AuditRoutes:
    """Below `/audit`."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._audit = AuditPage(services.account.audit)

    def routes(self) -> list[Route]:
        view = self._console.view
        return [
            Route("/audit", view(self.show_log, AUDIT.right), methods=["GET"]),
            Route("/audit/check", view(self.check, AUDIT.right), methods=["GET"]),
        ]

    async def show_log(self, request: Request, principal: TenantUser) -> Response:
        given = {name: request.query_params.get(name, "") for name in log.FIELDS}
        after = request.query_params.get("after")
        errors, status, entries = form_errors.NO_ERRORS, 200, Entries([], None)
        try:
            entries = await self._audit.gather(principal.tenant_id, log.read_filter(given), after)
        except form_errors.FieldError as error:
            errors, status = form_errors.FormErrors({error.field: error.message}), 422
        chosen = {name: value for name, value in given.items() if value}
        return self._log(
            request,
            principal,
            status,
            page=entries,
            fields=given,
            errors=errors,
            is_filtered=bool(chosen),
            is_first=after is None,
            query=urlencode(chosen),
        )

    async def check(self, request: Request, principal: TenantUser) -> Response:
        """Computes every digest anew: asked for, since it reads all of the log."""
        broken = await self._audit.first_broken(principal.tenant_id)
        return self._console.render(
            request, "audit_check.html", principal=principal, section=AUDIT.id, broken=broken
        )

    def _log(self, request: Request, principal: TenantUser, status: int, **context: object) -> Response:
        return self._console.render(
            request,
            "audit.html",
            status,
            principal=principal,
            section=AUDIT.id,
            known_types=log.KNOWN_TYPES,
            **context,
        )
