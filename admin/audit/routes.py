"""What is on record, over HTTP: the audit log and the service levels of a month. Changes nothing.

Owns the paths. What was recorded is `tenants.audit`'s and `sla`'s.
"""

from __future__ import annotations

from urllib.parse import urlencode

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.audit import page as log
from admin.audit.page import AuditPage, Entries
from admin.navigation import AUDIT, SLA
from admin.service_levels.page import SlaPage
from admin.services import ConsoleServices
from admin.web import form_errors
from admin.web.console import Frame, Visitor
from sla.errors import InvalidMonth


class RecordRoutes:
    """`/audit` and `/sla`."""

    def __init__(self, frame: Frame, services: ConsoleServices) -> None:
        self._frame = frame
        self._audit = AuditPage(services.account.audit)
        self._sla = SlaPage(services.sla)

    def routes(self) -> list[Route]:
        serving = self._frame.serving
        return [
            Route("/audit", serving(self.show_log, AUDIT.right), methods=["GET"]),
            Route("/audit/check", serving(self.check, AUDIT.right), methods=["GET"]),
            Route("/sla", serving(self.show_levels, SLA.right), methods=["GET"]),
            Route("/sla/report.json", serving(self.download, SLA.right), methods=["GET"]),
        ]

    async def show_log(self, request: Request, visitor: Visitor) -> Response:
        given = {name: request.query_params.get(name, "") for name in log.FIELDS}
        after = request.query_params.get("after")
        beside, status, shown = form_errors.NONE, 200, Entries([], None)
        try:
            shown = await self._audit.gather(visitor.tenant_id, log.read_filter(given), after)
        except form_errors.Refused as error:
            beside, status = form_errors.Problems({error.field: error.message}), 422
        chosen = {name: value for name, value in given.items() if value}
        return self._log(
            request,
            visitor,
            status,
            page=shown,
            fields=given,
            problems=beside,
            is_filtered=bool(chosen),
            is_first=after is None,
            query=urlencode(chosen),
        )

    async def check(self, request: Request, visitor: Visitor) -> Response:
        """Computes every digest anew: asked for, since it reads all of the log."""
        broken = await self._audit.first_broken(visitor.tenant_id)
        return self._frame.page(request, "audit_check.html", visitor=visitor, section=AUDIT.id, broken=broken)

    def _log(self, request: Request, visitor: Visitor, status: int, **context: object) -> Response:
        return self._frame.page(
            request,
            "audit.html",
            status,
            visitor=visitor,
            section=AUDIT.id,
            known_types=log.KNOWN_TYPES,
            **context,
        )

    async def show_levels(self, request: Request, visitor: Visitor) -> Response:
        month = request.query_params.get("month") or None
        try:
            shown = await self._sla.gather(visitor.tenant_id, month)
        except InvalidMonth as error:
            raise HTTPException(404, f"There is no report of this month: {error}.") from None
        return self._frame.page(request, "sla.html", visitor=visitor, section=SLA.id, page=shown)

    async def download(self, request: Request, visitor: Visitor) -> Response:
        """The document that the API serves."""
        try:
            report = await self._sla.report(visitor.tenant_id, request.query_params.get("month") or None)
        except InvalidMonth as error:
            raise HTTPException(404, f"There is no report of this month: {error}.") from None
        disposition = f'attachment; filename="service-levels-{report["month"]}.json"'
        headers = {"content-disposition": disposition}
        return Response(msgspec.json.encode(report), media_type="application/json", headers=headers)
