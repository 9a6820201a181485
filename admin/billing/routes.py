"""Serves the routes of billing: the page, billing details, top-ups, payment mode and the customer portal.

Links to the payment provider lead over a page of ours, since the content security policy allows forms to be
answered by this server alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.billing import page
from admin.billing.page import BillingPage
from admin.navigation import BILLING
from admin.services import ConsoleServices
from admin.web import form_errors
from admin.web.console import Console
from admin.web.principals import TenantUser
from admin.web.request_info import after_of
from billing.invoices.accounts import Mode
from billing.invoices.errors import BalanceEmpty, ModeNotAllowed
from billing.payments.errors import PaymentError

_INVOICE_ID = re.compile(r"inv_[0-9a-zA-Z]{1,40}")
_CREDIT_ID = re.compile(r"crd_[0-9a-zA-Z]{1,40}")


class BillingRoutes:
    """Below `/billing` and `/invoices`. Paths with a word where others have an id come first."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        billing = services.billing
        self._accounts, self._payments = billing.accounts, billing.payments
        self._billing = BillingPage(billing.statements, billing.credits, billing.payments)
        self._error_mapping = services.error_mapping
        self._expected_errors = form_errors.expected_errors(services.error_mapping)

    def routes(self) -> list[Route]:
        view, action = self._console.view, self._console.action
        read = BILLING.right
        return [
            Route("/billing", view(self.show, read), methods=["GET"]),
            Route("/billing/credits", view(self.show_credits, read), methods=["GET"]),
            Route("/billing/details", view(self.show_details, "billing.write"), methods=["GET"]),
            Route("/billing/details", action(self.change_details, "billing.write"), methods=["POST"]),
            Route(
                "/billing/portal",
                action(self.open_portal, "billing.write", members_alone=True),
                methods=["POST"],
            ),
            Route(
                "/billing/top-up",
                action(self.top_up, "billing.write", members_alone=True),
                methods=["POST"],
            ),
            Route(
                "/billing/prepaid",
                action(self.pay_in_advance, "billing.write", members_alone=True),
                methods=["POST"],
            ),
            Route(
                "/billing/postpaid",
                action(self.pay_afterwards, "billing.write", members_alone=True),
                methods=["POST"],
            ),
        ]

    # Billing ----------------------------------------------------------------------------------------------

    async def show(self, request: Request, principal: TenantUser) -> Response:
        return await self._show(request, principal, form_errors.NO_ERRORS, "")

    async def show_credits(self, request: Request, principal: TenantUser) -> Response:
        after = after_of(request, _CREDIT_ID)
        shown = await self._billing.credits(principal.tenant_id, after)
        balance = await self._billing.balance(principal.tenant_id)
        return self._page(
            request, "credits.html", principal, page=shown, balance=balance, is_first=after is None
        )

    async def show_details(self, request: Request, principal: TenantUser) -> Response:
        account = await self._accounts.find(principal.tenant_id)
        return self._details(request, principal, page.details_of(account), form_errors.NO_ERRORS)

    async def change_details(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        changes = page.read_details(form)
        try:
            await self._accounts.set_details(principal.tenant_id, principal.acting(request), changes)
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, page.FIELDS, self._error_mapping)
            return self._details(request, principal, changes, errors, status)
        said = "Billing details updated. They apply to future invoices."
        return await self._console.redirect_with_message(request, principal, "/billing", said)

    async def open_portal(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        try:
            url = await self._payments.portal(principal.tenant_id, principal.acting(request))
        except PaymentError as error:
            return await self._not_paid(request, principal, error)
        return self._page(request, "leaving.html", principal, url=url, what="the customer portal")

    async def top_up(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        try:
            amount = page.read_top_up(form)
            made = await self._payments.top_up(principal.tenant_id, amount, principal.acting(request))
        except form_errors.FieldError as error:
            errors = form_errors.FormErrors({error.field: error.message})
            return await self._show(request, principal, errors, form.get("amount", ""), 422)
        except PaymentError as error:
            return await self._not_paid(request, principal, error)
        return self._page(request, "leaving.html", principal, url=made.url, what="checkout")

    async def pay_in_advance(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        return await self._set_mode(
            request, principal, "prepaid", "Switched to prepaid. Usage is now deducted from your balance."
        )

    async def pay_afterwards(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        return await self._set_mode(
            request,
            principal,
            "postpaid",
            "Switched to invoicing. Usage is invoiced at the end of the month.",
        )

    async def _set_mode(self, request: Request, principal: TenantUser, mode: Mode, said: str) -> Response:
        try:
            await self._accounts.set_mode(
                principal.tenant_id, mode, principal.acting(request), now=datetime.now(UTC), by_tenant=True
            )
        except (BalanceEmpty, ModeNotAllowed) as error:
            status, _ = self._error_mapping.describe(error)
            why = "Your balance is empty. Top it up first." if isinstance(error, BalanceEmpty) else str(error)
            return await self._show(request, principal, form_errors.FormErrors(provider=why), "", status)
        return await self._console.redirect_with_message(request, principal, "/billing", said)

    async def _not_paid(self, request: Request, principal: TenantUser, error: PaymentError) -> Response:
        """The provider is away, or refuses: told where the buttons are."""
        status, envelope = self._error_mapping.describe(error)
        errors = form_errors.FormErrors(provider=str(envelope["error"]["message"]))
        return await self._show(request, principal, errors, "", status)

    async def _show(
        self,
        request: Request,
        principal: TenantUser,
        errors: form_errors.FormErrors,
        amount: str,
        status: int = 200,
    ) -> Response:
        account = principal.account
        root = request.scope.get("root_path", "")
        shown = await self._billing.gather(principal.tenant_id, account.tenant_name, account.plan, root)
        return self._page(
            request, "billing.html", principal, status, page=shown, plan=account.plan, errors=errors,
            amount=amount,
        )  # fmt: skip

    def _details(
        self,
        request: Request,
        principal: TenantUser,
        fields: Mapping[str, str],
        errors: form_errors.FormErrors,
        status: int = 200,
    ) -> Response:
        return self._page(request, "billing_details.html", principal, status, fields=fields, errors=errors)

    def _page(
        self, request: Request, template: str, principal: TenantUser, status: int = 200, **context: Any
    ) -> Response:
        return self._console.render(
            request, template, status, principal=principal, section=BILLING.id, **context
        )
