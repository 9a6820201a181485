"""Serves the routes of tenants: searching, viewing, suspending and reinstating them, granting credit."""

from __future__ import annotations

from datetime import UTC, datetime
from secrets import token_hex
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.amounts import read_dollars
from admin.navigation import TENANTS
from admin.operator.tenants import list_page
from admin.operator.tenants.list_page import TenantListPage
from admin.operator.tenants.page import TenantPages
from admin.services import ConsoleServices
from admin.web import form_errors
from admin.web.console import Console
from admin.web.principals import Operator
from admin.web.sorting import sort_of

HERE = TENANTS.path
_CREDIT_FIELDS = ("amount", "reason")


class TenantRoutes:
    """Below `/operator/tenants`."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._account = services.account
        self._credits = services.billing.credits
        self._list = TenantListPage(services.account.plans, services.operation)
        self._pages = TenantPages(services.account, services.adapters.catalogue, services.operation)
        self._error_mapping = services.error_mapping
        self._expected_errors = form_errors.expected_errors(services.error_mapping)

    def routes(self) -> list[Route]:
        view, action = self._console.operator_view, self._console.operator_action
        return [
            Route(HERE, view(self.show), methods=["GET"]),
            Route(f"{HERE}/{{tenant}}", view(self.show_one), methods=["GET"]),
            Route(f"{HERE}/{{tenant}}/shut-out", action(self.shut_out), methods=["POST"]),
            Route(f"{HERE}/{{tenant}}/let-in", action(self.let_in), methods=["POST"]),
            Route(f"{HERE}/{{tenant}}/credit", action(self.credit), methods=["POST"]),
        ]

    async def show(self, request: Request, operator: Operator) -> Response:
        given = {name: request.query_params.get(name, "") for name in list_page.FIELDS}
        sort = sort_of(request, list_page.COLUMNS)
        after = request.query_params.get("after") or None
        errors, status, shown = form_errors.NO_ERRORS, 200, list_page.NOTHING
        try:
            wanted = list_page.read_filter(given)
            begin = None if after is None else after[:200].replace("\x00", "")
            shown = await self._list.gather(wanted, begin, sort)
        except form_errors.FieldError as error:
            errors, status = form_errors.FormErrors({error.field: error.message}), 422
        filters = {name: value for name, value in given.items() if value}
        return self._console.render(
            request,
            "operator/tenants.html",
            status,
            principal=operator,
            section=TENANTS.id,
            page=shown,
            fields=given,
            errors=errors,
            standings=list_page.STANDINGS,
            is_filtered=bool(filters),
            is_first=after is None,
            sort=sort,
            filters=urlencode(filters),
            query=urlencode(filters | ({"sort": str(sort)} if sort else {})),
        )

    async def show_one(self, request: Request, operator: Operator) -> Response:
        return await self._one(request, operator, request.path_params["tenant"])

    async def shut_out(self, request: Request, operator: Operator, form: dict[str, str]) -> Response:
        said = "was suspended. All keys and users are blocked within a second."
        return await self._set_disabled(request, operator, True, said)

    async def let_in(self, request: Request, operator: Operator, form: dict[str, str]) -> Response:
        return await self._set_disabled(request, operator, False, "was reinstated.")

    async def credit(self, request: Request, operator: Operator, form: dict[str, str]) -> Response:
        tenant = await self._account.tenants.find_tenant(request.path_params["tenant"])
        try:
            amount = read_dollars(form.get("amount", ""), "amount")
            reason = " ".join(form.get("reason", "").split())
            if not 3 <= len(reason) <= 200 or not reason.isprintable():
                raise form_errors.FieldError("reason", "Describe the credit in 3 to 200 characters.")
            await self._credits.add(
                tenant.id,
                "grant",
                amount,
                f"console:{form.get('once', '')[:64]}",  # sent twice, it counts once
                operator.acting(request),
                now=datetime.now(UTC),
                reason=reason,
            )
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, _CREDIT_FIELDS, self._error_mapping)
            return await self._one(request, operator, tenant.id, status, fields=form, errors=errors)
        said = f"${amount / 1_000_000:,.2f} added to the balance of {tenant.name}."
        return await self._console.redirect_with_message(request, operator, f"{HERE}/{tenant.id}", said)

    async def _set_disabled(
        self, request: Request, operator: Operator, disabled: bool, said: str
    ) -> Response:
        tenant = await self._account.tenants.find_tenant(request.path_params["tenant"])
        await self._account.tenants.set_tenant_disabled(tenant.id, disabled, operator.acting(request))
        return await self._console.redirect_with_message(
            request, operator, f"{HERE}/{tenant.id}", f"{tenant.name} {said}"
        )

    async def _one(
        self, request: Request, operator: Operator, tenant_id: str, status: int = 200, **context: Any
    ) -> Response:
        shown = await self._pages.one(tenant_id)
        return self._console.render(
            request,
            "operator/tenant.html",
            status,
            principal=operator,
            section=TENANTS.id,
            page=shown,
            once=token_hex(16),
            **{"fields": {}, "errors": form_errors.NO_ERRORS} | context,
        )
