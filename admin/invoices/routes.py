"""Serves the routes of the invoices section: the list, one invoice, the preview of the next, and their
documents.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.invoices.page import InvoicesPage, Shown
from admin.navigation import INVOICES
from admin.services import ConsoleServices
from admin.web.console import Console
from admin.web.principals import TenantUser
from admin.web.request_info import after_of
from billing.errors import InvalidBillingMonth
from billing.invoices.documents import file_name, invoice_object, invoice_pdf
from billing.months import parse

_INVOICE_ID = re.compile(r"inv_[0-9a-zA-Z]{1,40}")


class InvoiceRoutes:
    """Below `/invoices`. Fixed paths come before those with an id."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._invoices = InvoicesPage(services.billing.invoices, services.billing.verification)

    def routes(self) -> list[Route]:
        view = self._console.view
        read, one = INVOICES.right, "/invoices/{invoice}"
        return [
            Route("/invoices", view(self.show_list, read), methods=["GET"]),
            Route("/invoices/preview", view(self.show_preview, read), methods=["GET"]),
            Route("/invoices/preview.pdf", view(self.preview_pdf, read), methods=["GET"]),
            Route("/invoices/preview.json", view(self.preview_json, read), methods=["GET"]),
            Route(one, view(self.show_invoice, read), methods=["GET"]),
            Route(f"{one}/invoice.pdf", view(self.pdf, read), methods=["GET"]),
            Route(f"{one}/invoice.json", view(self.json, read), methods=["GET"]),
            Route(f"{one}/check", view(self.check, read), methods=["GET"]),
        ]

    async def show_list(self, request: Request, principal: TenantUser) -> Response:
        after = after_of(request, _INVOICE_ID)
        shown = await self._invoices.shown(principal.tenant_id, after)
        return self._page(request, "invoices.html", principal, page=shown, is_first=after is None)

    async def show_invoice(self, request: Request, principal: TenantUser) -> Response:
        shown = await self._invoices.one(principal.tenant_id, request.path_params["invoice"])
        return self._page(request, "invoice.html", principal, invoice=shown)

    async def show_preview(self, request: Request, principal: TenantUser) -> Response:
        shown = await self._previewed(request, principal)
        if shown.view.id is not None:  # the month is invoiced meanwhile
            return self._console.redirect(request, f"/invoices/{shown.view.id}")
        return self._page(request, "invoice.html", principal, invoice=shown)

    async def preview_pdf(self, request: Request, principal: TenantUser) -> Response:
        return await _pdf(await self._previewed(request, principal))

    async def preview_json(self, request: Request, principal: TenantUser) -> Response:
        return _json(await self._previewed(request, principal))

    async def pdf(self, request: Request, principal: TenantUser) -> Response:
        return await _pdf(await self._invoices.one(principal.tenant_id, request.path_params["invoice"]))

    async def json(self, request: Request, principal: TenantUser) -> Response:
        """The document that the API serves."""
        return _json(await self._invoices.one(principal.tenant_id, request.path_params["invoice"]))

    async def check(self, request: Request, principal: TenantUser) -> Response:
        """Prices the rows behind an invoice anew: asked for, since it reads all of them."""
        found = await self._invoices.check(principal.tenant_id, request.path_params["invoice"])
        return self._page(
            request, "invoice_check.html", principal, checked=found, id=request.path_params["invoice"]
        )

    async def _previewed(self, request: Request, principal: TenantUser) -> Shown:
        try:
            return await self._invoices.preview(principal.tenant_id, _month(request))
        except InvalidBillingMonth as error:
            raise HTTPException(404, f"There's no preview for this month: {error}.") from None

    def _page(
        self, request: Request, template: str, principal: TenantUser, status: int = 200, **context: Any
    ) -> Response:
        return self._console.render(
            request, template, status, principal=principal, section=INVOICES.id, **context
        )


def _month(request: Request) -> date | None:
    """Raises InvalidBillingMonth."""
    month = request.query_params.get("month")
    return parse(month) if month else None


async def _pdf(shown: Shown) -> Response:
    body = await invoice_pdf(shown.view)
    return Response(body, media_type="application/pdf", headers=_attached(f"{file_name(shown.view)}.pdf"))


def _json(shown: Shown) -> Response:
    body = msgspec.json.format(msgspec.json.encode(invoice_object(shown.view)), indent=2)
    headers = _attached(f"{file_name(shown.view)}.json")
    return Response(body, media_type="application/json", headers=headers)


def _attached(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}"'}
