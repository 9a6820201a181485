"""Billing and invoices over HTTP.

Owns the paths, and how a visitor gets to the payment provider's pages: by one of ours that leads on, since
forms may be answered by this server alone. What is owed is `billing`'s.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.billing import page
from admin.billing.page import BillingPage
from admin.invoices.page import InvoicesPage, Shown
from admin.navigation import BILLING, INVOICES
from admin.services import ConsoleServices
from admin.web import form_errors
from admin.web.console import Frame
from admin.web.principals import Visitor
from admin.web.request_info import after_of
from billing.errors import InvalidBillingMonth
from billing.invoices.accounts import Mode
from billing.invoices.documents import file_name, invoice_object, invoice_pdf
from billing.invoices.errors import BalanceEmpty, ModeNotAllowed
from billing.months import parse
from billing.payments.errors import PaymentError

_INVOICE_ID = re.compile(r"inv_[0-9a-zA-Z]{1,40}")
_CREDIT_ID = re.compile(r"crd_[0-9a-zA-Z]{1,40}")


class BillingRoutes:
    """Below `/billing` and `/invoices`. Paths with a word where others have an id come first."""

    def __init__(self, frame: Frame, services: ConsoleServices) -> None:
        self._frame = frame
        billing = services.billing
        self._accounts, self._payments = billing.accounts, billing.payments
        self._billing = BillingPage(billing.statements, billing.credits, billing.payments)
        self._invoices = InvoicesPage(billing.invoices, billing.verification)
        self._explanations = services.explanations
        self._refusals = form_errors.refusals(services.explanations)

    def routes(self) -> list[Route]:
        serving, changing = self._frame.serving, self._frame.changing
        read, one = BILLING.right, "/invoices/{invoice}"
        return [
            Route("/billing", serving(self.show, read), methods=["GET"]),
            Route("/billing/credits", serving(self.show_credits, read), methods=["GET"]),
            Route("/billing/details", serving(self.show_details, "billing.write"), methods=["GET"]),
            Route("/billing/details", changing(self.change_details, "billing.write"), methods=["POST"]),
            Route(
                "/billing/portal",
                changing(self.open_portal, "billing.write", members_alone=True),
                methods=["POST"],
            ),
            Route(
                "/billing/top-up",
                changing(self.top_up, "billing.write", members_alone=True),
                methods=["POST"],
            ),
            Route(
                "/billing/prepaid",
                changing(self.pay_in_advance, "billing.write", members_alone=True),
                methods=["POST"],
            ),
            Route(
                "/billing/postpaid",
                changing(self.pay_afterwards, "billing.write", members_alone=True),
                methods=["POST"],
            ),
            Route("/invoices", serving(self.show_list, read), methods=["GET"]),
            Route("/invoices/preview", serving(self.show_preview, read), methods=["GET"]),
            Route("/invoices/preview.pdf", serving(self.preview_pdf, read), methods=["GET"]),
            Route("/invoices/preview.json", serving(self.preview_json, read), methods=["GET"]),
            Route(one, serving(self.show_invoice, read), methods=["GET"]),
            Route(f"{one}/invoice.pdf", serving(self.pdf, read), methods=["GET"]),
            Route(f"{one}/invoice.json", serving(self.json, read), methods=["GET"]),
            Route(f"{one}/check", serving(self.check, read), methods=["GET"]),
        ]

    # Billing ----------------------------------------------------------------------------------------------

    async def show(self, request: Request, visitor: Visitor) -> Response:
        return await self._show(request, visitor, form_errors.NONE, "")

    async def show_credits(self, request: Request, visitor: Visitor) -> Response:
        after = after_of(request, _CREDIT_ID)
        shown = await self._billing.credits(visitor.tenant_id, after)
        balance = await self._billing.balance(visitor.tenant_id)
        return self._page(
            request, "credits.html", visitor, page=shown, balance=balance, is_first=after is None
        )

    async def show_details(self, request: Request, visitor: Visitor) -> Response:
        account = await self._accounts.find(visitor.tenant_id)
        return self._details(request, visitor, page.details_of(account), form_errors.NONE)

    async def change_details(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        changes = page.read_details(form)
        try:
            await self._accounts.set_details(visitor.tenant_id, visitor.acting(request), changes)
        except self._refusals as error:
            status, beside = form_errors.explain(error, page.FIELDS, self._explanations)
            return self._details(request, visitor, changes, beside, status)
        said = "Bills made from now on name these details."
        return await self._frame.done(request, visitor, "/billing", said)

    async def open_portal(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        try:
            url = await self._payments.portal(visitor.tenant_id, visitor.acting(request))
        except PaymentError as error:
            return await self._not_paid(request, visitor, error)
        return self._page(request, "leaving.html", visitor, url=url, what="the customer portal")

    async def top_up(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        try:
            amount = page.read_top_up(form)
            made = await self._payments.top_up(visitor.tenant_id, amount, visitor.acting(request))
        except form_errors.Refused as error:
            beside = form_errors.Problems({error.field: error.message})
            return await self._show(request, visitor, beside, form.get("amount", ""), 422)
        except PaymentError as error:
            return await self._not_paid(request, visitor, error)
        return self._page(request, "leaving.html", visitor, url=made.url, what="the page to pay on")

    async def pay_in_advance(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        return await self._set_mode(
            request, visitor, "prepaid", "From this minute on, usage is drawn from your balance."
        )

    async def pay_afterwards(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        return await self._set_mode(
            request, visitor, "postpaid", "From this minute on, usage is invoiced at the end of the month."
        )

    async def _set_mode(self, request: Request, visitor: Visitor, mode: Mode, said: str) -> Response:
        try:
            await self._accounts.set_mode(
                visitor.tenant_id, mode, visitor.acting(request), now=datetime.now(UTC), by_tenant=True
            )
        except (BalanceEmpty, ModeNotAllowed) as error:
            status, _ = self._explanations.tell(error)
            why = "Top up your balance first: it is empty." if isinstance(error, BalanceEmpty) else str(error)
            return await self._show(request, visitor, form_errors.Problems(provider=why), "", status)
        return await self._frame.done(request, visitor, "/billing", said)

    async def _not_paid(self, request: Request, visitor: Visitor, error: PaymentError) -> Response:
        """The provider is away, or refuses: told where the buttons are."""
        status, envelope = self._explanations.tell(error)
        beside = form_errors.Problems(provider=str(envelope["error"]["message"]))
        return await self._show(request, visitor, beside, "", status)

    async def _show(
        self, request: Request, visitor: Visitor, beside: form_errors.Problems, amount: str, status: int = 200
    ) -> Response:
        account = visitor.account
        root = request.scope.get("root_path", "")
        shown = await self._billing.gather(visitor.tenant_id, account.tenant_name, account.plan, root)
        return self._page(
            request, "billing.html", visitor, status, page=shown, plan=account.plan, problems=beside,
            amount=amount,
        )  # fmt: skip

    def _details(
        self,
        request: Request,
        visitor: Visitor,
        fields: Mapping[str, str],
        beside: form_errors.Problems,
        status: int = 200,
    ) -> Response:
        return self._page(request, "billing_details.html", visitor, status, fields=fields, problems=beside)

    def _page(
        self, request: Request, template: str, visitor: Visitor, status: int = 200, **context: Any
    ) -> Response:
        return self._frame.page(request, template, status, visitor=visitor, section=BILLING.id, **context)

    # Invoices ---------------------------------------------------------------------------------------------

    async def show_list(self, request: Request, visitor: Visitor) -> Response:
        after = after_of(request, _INVOICE_ID)
        shown = await self._invoices.shown(visitor.tenant_id, after)
        return self._invoice_page(request, "invoices.html", visitor, page=shown, is_first=after is None)

    async def show_invoice(self, request: Request, visitor: Visitor) -> Response:
        shown = await self._invoices.one(visitor.tenant_id, request.path_params["invoice"])
        return self._invoice_page(request, "invoice.html", visitor, invoice=shown)

    async def show_preview(self, request: Request, visitor: Visitor) -> Response:
        shown = await self._previewed(request, visitor)
        if shown.view.id is not None:  # the month is invoiced meanwhile
            return self._frame.to(request, f"/invoices/{shown.view.id}")
        return self._invoice_page(request, "invoice.html", visitor, invoice=shown)

    async def preview_pdf(self, request: Request, visitor: Visitor) -> Response:
        return await _pdf(await self._previewed(request, visitor))

    async def preview_json(self, request: Request, visitor: Visitor) -> Response:
        return _json(await self._previewed(request, visitor))

    async def pdf(self, request: Request, visitor: Visitor) -> Response:
        return await _pdf(await self._invoices.one(visitor.tenant_id, request.path_params["invoice"]))

    async def json(self, request: Request, visitor: Visitor) -> Response:
        """The document that the API serves."""
        return _json(await self._invoices.one(visitor.tenant_id, request.path_params["invoice"]))

    async def check(self, request: Request, visitor: Visitor) -> Response:
        """Prices the rows behind an invoice anew: asked for, since it reads all of them."""
        found = await self._invoices.check(visitor.tenant_id, request.path_params["invoice"])
        return self._invoice_page(
            request, "invoice_check.html", visitor, checked=found, id=request.path_params["invoice"]
        )

    async def _previewed(self, request: Request, visitor: Visitor) -> Shown:
        try:
            return await self._invoices.preview(visitor.tenant_id, _month(request))
        except InvalidBillingMonth as error:
            raise HTTPException(404, f"There is no preview of this month: {error}.") from None

    def _invoice_page(
        self, request: Request, template: str, visitor: Visitor, status: int = 200, **context: Any
    ) -> Response:
        return self._frame.page(request, template, status, visitor=visitor, section=INVOICES.id, **context)


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
