"""Serves the routes of the audit log over all tenants, and of its verification."""

from __future__ import annotations

from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.audit import page as log
from admin.navigation import EVERY_AUDIT
from admin.services import ConsoleServices
from admin.web import form_errors
from admin.web.console import Console
from admin.web.principals import Operator
from tenants.audit.service import OPERATOR_CHAIN

HERE = EVERY_AUDIT.path
FIELDS = ("tenant", *log.FIELDS)
_OF_THE_SERVICE = (
    *("backup.drilled", "plan.created", "plan.updated", "price.created"),
    *("secret.resealed", "secret.rotated", "secret.rotation_begun"),
)
KNOWN_TYPES = sorted((*log.KNOWN_TYPES, *_OF_THE_SERVICE))
"""With those of the service itself."""


class AuditRoutes:
    """`/operator/audit`."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._audit = services.account.audit
        self._directory = services.operation.directory

    def routes(self) -> list[Route]:
        view = self._console.operator_view
        return [
            Route(HERE, view(self.show), methods=["GET"]),
            Route(f"{HERE}/check", view(self.check), methods=["GET"]),
        ]

    async def show(self, request: Request, operator: Operator) -> Response:
        given = {name: request.query_params.get(name, "").strip() for name in FIELDS}
        after = request.query_params.get("after") or None
        errors, status, rows = form_errors.NO_ERRORS, 200, []
        try:
            if len(given["tenant"]) > 200 or any("\x00" in text for text in (given["tenant"], after or "")):
                raise form_errors.FieldError("tenant", "No tenant has this ID.")
            wanted = log.read_filter(given)
            found = await self._audit.everywhere(
                wanted, tenant_id=given["tenant"] or None, after=after, limit=log.PAGE + 1
            )
            rows = [(entry.tenant_id, log.row_of(entry)) for entry in found]
        except form_errors.FieldError as error:
            errors, status = form_errors.FormErrors({error.field: error.message}), 422
        chosen = {name: value for name, value in given.items() if value}
        return self._console.render(
            request,
            "operator/audit.html",
            status,
            principal=operator,
            section=EVERY_AUDIT.id,
            rows=rows[: log.PAGE],
            next_after=rows[log.PAGE - 1][1].id if len(rows) > log.PAGE else None,
            is_first=after is None,
            is_filtered=bool(chosen),
            fields=given,
            errors=errors,
            query=urlencode(chosen),
            known_types=KNOWN_TYPES,
            names=await self._directory.names([*{tenant_id for tenant_id, _ in rows}]),
            service=OPERATOR_CHAIN,
        )

    async def check(self, request: Request, operator: Operator) -> Response:
        """Computes every digest of every chain anew: asked for, since it reads all of the log."""
        chains = await self._audit.chains()
        broken = [(one, seq) for one in chains if (seq := await self._audit.verify(one)) is not None]
        return self._console.render(
            request,
            "operator/audit_check.html",
            principal=operator,
            section=EVERY_AUDIT.id,
            num_chains=len(chains),
            broken=broken,
            names=await self._directory.names([one for one, _ in broken]),
            service=OPERATOR_CHAIN,
        )
