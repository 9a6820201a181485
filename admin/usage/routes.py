"""Serves the routes of usage: the page, requests, receipts and exports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, date, datetime

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from admin.navigation import USAGE
from admin.services import ConsoleServices
from admin.usage import query
from admin.usage.labels import LabelLookup
from admin.usage.page import UsagePage
from admin.usage.query import UsageQuery
from admin.usage.receipt_page import ReceiptPage
from admin.usage.refused_page import RefusedPage
from admin.usage.request_finder import RequestFinder
from admin.usage.requests_page import RequestsPage
from admin.web import form_errors
from admin.web.console import Console
from admin.web.principals import TenantUser

NOT_FOUND = (
    "No request with this ID. Requests that ran are found by the ID of their response (chatcmpl-…), "
    "refused ones of the last 30 days by their x-request-id."
)


class UsageRoutes:
    """The pages below `/usage`."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._reports = services.usage
        labels = LabelLookup(services.adapters.catalogue)
        self._usage = UsagePage(services.usage.slices, labels)
        self._requests = RequestsPage(services.usage.slices, services.refused, labels)
        self._receipts = ReceiptPage(services.usage.receipts, labels)
        self._refused = RefusedPage(services.refused, labels)
        self._finder = RequestFinder(self._receipts, self._refused)

    def routes(self) -> list[Route]:
        view, right = self._console.view, USAGE.right
        one = "/usage/requests/{id}"
        return [
            Route("/usage", view(self.show, right), methods=["GET"]),
            Route("/usage/export", view(self.export, right), methods=["GET"]),
            Route("/usage/requests", view(self.show_requests, right), methods=["GET"]),
            Route("/usage/requests/refused/{position}", view(self.show_refused, right), methods=["GET"]),
            Route(f"{one}/receipt.json", view(self.download, right), methods=["GET"]),
            Route(one, view(self.show_receipt, right), methods=["GET"]),
        ]

    async def show(self, request: Request, principal: TenantUser) -> Response:
        usage_query, errors, status = _read(request)
        shown = await self._usage.gather(principal.tenant_id, usage_query, principal.may)
        return self._console.render(
            request,
            "usage.html",
            status,
            principal=principal,
            section=USAGE.id,
            page=shown,
            errors=errors,
        )

    async def show_requests(self, request: Request, principal: TenantUser) -> Response:
        usage_query, errors, status = _read(request)
        wanted = request.query_params.get("id", "").strip()
        if wanted:
            path = await self._finder.path(principal.tenant_id, wanted)
            if path is not None:
                return self._console.redirect(request, f"/usage/requests/{path}")
            errors, status = form_errors.FormErrors({"id": NOT_FOUND}), 404
        after = request.query_params.get("after", "")
        try:
            shown = await self._requests.list(principal.tenant_id, usage_query, after, principal.may)
        except form_errors.FieldError as error:
            errors, status, after = form_errors.FormErrors({error.field: error.message}), 422, ""
            shown = await self._requests.list(principal.tenant_id, usage_query, after, principal.may)
        return self._console.render(
            request,
            "requests.html",
            status,
            principal=principal,
            section=USAGE.id,
            page=shown,
            is_first=not after,
            wanted=wanted,
            errors=errors,
        )

    async def show_receipt(self, request: Request, principal: TenantUser) -> Response:
        shown = await self._receipts.gather(principal.tenant_id, request.path_params["id"], principal.may)
        return self._console.render(
            request, "receipt.html", principal=principal, section=USAGE.id, page=shown
        )

    async def show_refused(self, request: Request, principal: TenantUser) -> Response:
        position = request.path_params["position"]
        shown = await self._refused.gather(principal.tenant_id, position, principal.may)
        if shown is None:
            raise HTTPException(404)
        return self._console.render(
            request, "refused.html", principal=principal, section=USAGE.id, page=shown
        )

    async def download(self, request: Request, principal: TenantUser) -> Response:
        """Serves the receipt that the API serves, as a file."""
        document = await self._receipts.document(principal.tenant_id, request.path_params["id"])
        headers = {"content-disposition": f'attachment; filename="receipt-{document["id"]}.json"'}
        return Response(msgspec.json.encode(document), media_type="application/json", headers=headers)

    async def export(self, request: Request, principal: TenantUser) -> Response:
        """Exports what the query selects as the API does: every row of the ledger, or with `sums` the
        totals of the chart.
        """
        try:
            usage_query = query.read(request.query_params, _today())
        except form_errors.FieldError as error:
            raise HTTPException(400, error.message) from None
        is_summed = request.query_params.get("what", "") == "sums"
        group = query.BY_ID[usage_query.group].column if usage_query.group else None
        export = await self._reports.exports.open(
            principal.tenant_id,
            format=request.query_params.get("format", "csv"),
            start_time=int(usage_query.start.timestamp()),
            end_time=int(usage_query.end.timestamp()),
            bucket_width={"hour": "1h", "day": "1d"}[usage_query.unit] if is_summed else None,
            group_by=[group] if is_summed and group else (),
            slice=usage_query.slice,
        )
        first = await anext(export.pieces)  # an unavailable database is reported before the 200
        return StreamingResponse(
            _beginning_with(first, export.pieces),
            media_type=export.media_type,
            headers={"content-disposition": f'attachment; filename="{export.filename}"'},
        )


def _read(request: Request) -> tuple[UsageQuery, form_errors.FormErrors, int]:
    """Returns the query, the errors of its fields, and the response's status."""
    try:
        return query.read(request.query_params, _today()), form_errors.NO_ERRORS, 200
    except form_errors.FieldError as error:
        return query.default(_today()), form_errors.FormErrors({error.field: error.message}), 422


def _today() -> date:
    return datetime.now(UTC).date()


async def _beginning_with(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece
