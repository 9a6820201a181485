"""Serves the routes of usage limits: the page, and setting and removing a limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.limits import page
from admin.limits.page import LimitsPage
from admin.navigation import LIMITS
from admin.services import ConsoleServices
from admin.web import form_errors
from admin.web.console import Console
from admin.web.principals import TenantUser
from tenants.limits.kinds import Metric
from tenants.roles import Right

_MAX_PAGES = 100
_SHOWN = ("for", "metric", "model", "amount", "edit")
"""What a link to the form can fill in; `edit` if there is such a limit already."""


class LimitRoutes:
    """Below `/limits`. Paths with a word where others have an id come first."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        account, billing = services.account, services.billing
        self._limits = account.limits
        self._base = services.adapters.catalogue.bases.default
        self._pages = LimitsPage(
            account.limits,
            billing.quotas,
            services.adapters.catalogue,
            services.files,
            services.names,
            account.keys,
            account.projects,
            services.batches,
        )
        self._error_mapping = services.error_mapping
        self._expected_errors = form_errors.expected_errors(services.error_mapping)

    def routes(self) -> list[Route]:
        view, action = self._console.view, self._console.action
        read = LIMITS.right
        write: Right = "limits.write"
        return [
            Route("/limits", view(self.show, read), methods=["GET"]),
            Route("/limits", action(self.set, write), methods=["POST"]),
            Route("/limits/new", view(self.show_form, write), methods=["GET"]),
            Route("/limits/spend", action(self.set_spend, write), methods=["POST"]),
            Route("/limits/remove", action(self.remove, write), methods=["POST"]),
        ]

    # Limits -----------------------------------------------------------------------------------------------

    async def show(self, request: Request, principal: TenantUser) -> Response:
        return await self._show(request, principal, form_errors.NO_ERRORS, None)

    async def show_form(self, request: Request, principal: TenantUser) -> Response:
        fields = {name: request.query_params.get(name, "") for name in _SHOWN}
        return await self._form(request, principal, fields, form_errors.NO_ERRORS)

    async def set(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        try:
            limit = page.read_limit(form, principal.tenant_id)
            limit = replace(limit, amount=page.read_amount(limit.metric, form.get("amount", "")))
            page.check_most(limit, principal.account.plan)
            await self._limits.set(principal.tenant_id, principal.acting(request), limit)
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, page.FIELDS, self._error_mapping)
            return await self._form(request, principal, form, _of_scope(errors, status), status)
        message = (
            f"{page.title_of(limit.metric)}: limit set to {page.amount_words(limit.metric, limit.amount)}."
        )
        return await self._console.redirect_with_message(request, principal, _tab_path(limit.scope), message)

    async def set_spend(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        """The organisation's of a month: the one most often wanted has a form of its own."""
        written = form.get("spend", "")
        metric = Metric.SPEND_PER_MONTH
        try:
            limit = page.read_limit({"for": "tenant", "metric": metric}, principal.tenant_id)
            limit = replace(limit, amount=page.read_amount(metric, written, "spend"))
            page.check_most(limit, principal.account.plan, "spend")
            await self._limits.set(principal.tenant_id, principal.acting(request), limit)
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, page.FIELDS, self._error_mapping)
            told = next(iter(errors.values()))
            return await self._show(request, principal, form_errors.FormErrors(spend=told), written, status)
        message = f"Monthly spend limit set to {page.amount_words(metric, limit.amount)}."
        return await self._console.redirect_with_message(request, principal, "/limits", message)

    async def remove(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        try:
            limit = page.read_limit(form, principal.tenant_id)
        except form_errors.FieldError as error:
            raise HTTPException(400, error.message) from None
        await self._limits.delete(
            principal.tenant_id,
            principal.acting(request),
            limit.scope,
            limit.scope_id,
            limit.model,
            limit.metric,
        )
        title = page.title_of(limit.metric).lower()
        message = f"Limit removed ({title}). Your plan's limit applies, if there is one."
        return await self._console.redirect_with_message(request, principal, _tab_path(limit.scope), message)

    async def _show(
        self,
        request: Request,
        principal: TenantUser,
        errors: form_errors.FormErrors,
        spend: str | None,
        status: int = 200,
    ) -> Response:
        tab = request.query_params.get("of", "organisation")
        written = request.query_params.get("page", "1")
        number = int(written) if written.isdecimal() and len(written) < 4 else 0
        if tab not in page.SCOPES or not 1 <= number <= _MAX_PAGES:
            raise HTTPException(404, "This page of the list doesn't exist.")
        limits = await self._pages.gather(principal.tenant_id, principal.account.plan, tab, number)  # type: ignore[arg-type]
        if spend is None:
            spend = "" if limits.spend is None else limits.spend.written
        return self._page(
            request,
            "limits.html",
            principal,
            status,
            page=limits,
            tab=limits.tab,
            errors=errors,
            spend=spend,
        )

    async def _form(
        self,
        request: Request,
        principal: TenantUser,
        fields: Mapping[str, str],
        errors: form_errors.FormErrors,
        status: int = 200,
    ) -> Response:
        choices = await self._pages.choices(principal.tenant_id)
        wanted = fields.get("for", "")
        if wanted and wanted not in {value for value, _ in choices}:
            choices = [*choices, (wanted, wanted.partition(":")[2])]
        return self._page(
            request,
            "limit_form.html",
            principal,
            status,
            tab="",
            fields=fields,
            errors=errors,
            choices=choices,
            metrics=page.CHOICES,
            base=self._base,
        )

    def _page(
        self, request: Request, template: str, principal: TenantUser, status: int = 200, **context: Any
    ) -> Response:
        return self._console.render(
            request, template, status, principal=principal, section=LIMITS.id, **context
        )


def _of_scope(errors: form_errors.FormErrors, status: int) -> form_errors.FormErrors:
    """A project or key that is not there is about the choice of it."""
    if status == 404:
        return form_errors.FormErrors({"for": next(iter(errors.values()))})
    return errors


def _tab_path(scope: str) -> str:
    tab = next(tab for tab, of in page.SCOPES.items() if of == scope)
    return "/limits" if tab == "organisation" else f"/limits?of={tab}"
