"""Limits and spend alerts over HTTP.

Owns the paths. Who may limit what, and by how much, is `tenants.quotas`' and `billing.spend`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.limits import alerts_page as alert_page
from admin.limits import page
from admin.limits.alerts_page import AlertForm, AlertsPage
from admin.limits.page import LimitsPage
from admin.navigation import LIMITS
from admin.services import ConsoleServices
from admin.web import form_errors
from admin.web.console import Frame
from admin.web.principals import Visitor
from tenants.limits.kinds import Metric
from tenants.roles import Right

_MAX_PAGES = 100


class LimitRoutes:
    """Below `/limits`. Paths with a word where others have an id come first."""

    def __init__(self, frame: Frame, services: ConsoleServices) -> None:
        self._frame = frame
        account, billing = services.account, services.billing
        self._limits, self._alerts = account.limits, billing.alerts
        self._is_mailing = billing.is_mailing
        self._base = services.adapters.catalogue.base
        self._pages = LimitsPage(
            account.limits,
            billing.quotas,
            services.adapters.catalogue,
            services.files,
            services.names,
            account.keys,
            account.projects,
        )
        self._alert_pages = AlertsPage(
            billing.alerts, account.limits, billing.quotas, services.names, account.projects
        )
        self._explanations = services.explanations
        self._refusals = form_errors.refusals(services.explanations)

    def routes(self) -> list[Route]:
        serving, changing = self._frame.serving, self._frame.changing
        read = LIMITS.right
        write: Right = "limits.write"
        alert = "/limits/alerts/{alert}"
        return [
            Route("/limits", serving(self.show, read), methods=["GET"]),
            Route("/limits", changing(self.set, write), methods=["POST"]),
            Route("/limits/new", serving(self.show_form, write), methods=["GET"]),
            Route("/limits/spend", changing(self.set_spend, write), methods=["POST"]),
            Route("/limits/remove", changing(self.remove, write), methods=["POST"]),
            Route("/limits/alerts", serving(self.show_alerts, read), methods=["GET"]),
            Route("/limits/alerts", changing(self.create_alert, write), methods=["POST"]),
            Route("/limits/alerts/new", serving(self.show_alert_form, write), methods=["GET"]),
            Route(alert, serving(self.show_alert, read), methods=["GET"]),
            Route(alert, changing(self.change_alert, write), methods=["POST"]),
            Route(f"{alert}/test", changing(self.test_alert, write), methods=["POST"]),
            Route(f"{alert}/delete", changing(self.delete_alert, write), methods=["POST"]),
        ]

    # Limits -----------------------------------------------------------------------------------------------

    async def show(self, request: Request, visitor: Visitor) -> Response:
        return await self._show(request, visitor, form_errors.NONE, None)

    async def show_form(self, request: Request, visitor: Visitor) -> Response:
        fields = {name: request.query_params.get(name, "") for name in ("for", "metric", "model", "amount")}
        return await self._form(request, visitor, fields, form_errors.NONE)

    async def set(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        try:
            limit = page.read_limit(form, visitor.tenant_id)
            limit = replace(limit, amount=page.read_amount(limit.metric, form.get("amount", "")))
            page.check_most(limit, visitor.account.plan)
            await self._limits.set(visitor.tenant_id, visitor.acting(request), limit)
        except self._refusals as error:
            status, beside = form_errors.explain(error, page.FIELDS, self._explanations)
            return await self._form(request, visitor, form, _of_scope(beside, status), status)
        said = f"{page.title_of(limit.metric)}: at most {page.amount_words(limit.metric, limit.amount)} now."
        return await self._frame.done(request, visitor, _tab_path(limit.scope), said)

    async def set_spend(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        """The organisation's of a month: the one most often wanted has a form of its own."""
        written = form.get("spend", "")
        metric = Metric.SPEND_PER_MONTH
        try:
            limit = page.read_limit({"for": "tenant", "metric": metric}, visitor.tenant_id)
            limit = replace(limit, amount=page.read_amount(metric, written, "spend"))
            page.check_most(limit, visitor.account.plan, "spend")
            await self._limits.set(visitor.tenant_id, visitor.acting(request), limit)
        except self._refusals as error:
            status, beside = form_errors.explain(error, page.FIELDS, self._explanations)
            told = next(iter(beside.values()))
            return await self._show(request, visitor, form_errors.Problems(spend=told), written, status)
        said = f"From now on {page.amount_words(metric, limit.amount)} can be spent in a month."
        return await self._frame.done(request, visitor, "/limits", said)

    async def remove(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        try:
            limit = page.read_limit(form, visitor.tenant_id)
        except form_errors.Refused as error:
            raise HTTPException(400, error.message) from None
        await self._limits.delete(
            visitor.tenant_id,
            visitor.acting(request),
            limit.scope,
            limit.scope_id,
            limit.model,
            limit.metric,
        )
        said = (
            f"The limit is gone ({page.title_of(limit.metric).lower()}). Where your plan has one, that holds."
        )
        return await self._frame.done(request, visitor, _tab_path(limit.scope), said)

    async def _show(
        self,
        request: Request,
        visitor: Visitor,
        beside: form_errors.Problems,
        spend: str | None,
        status: int = 200,
    ) -> Response:
        tab = request.query_params.get("of", "organisation")
        written = request.query_params.get("page", "1")
        number = int(written) if written.isdecimal() and len(written) < 4 else 0
        if tab not in page.SCOPES or not 1 <= number <= _MAX_PAGES:
            raise HTTPException(404, "There is no such page of the list.")
        shown = await self._pages.gather(visitor.tenant_id, visitor.account.plan, tab, number)  # type: ignore[arg-type]
        if spend is None:
            spend = "" if shown.spend is None else shown.spend.written
        return self._page(
            request, "limits.html", visitor, status, page=shown, tab=shown.tab, problems=beside, spend=spend
        )

    async def _form(
        self,
        request: Request,
        visitor: Visitor,
        fields: Mapping[str, str],
        beside: form_errors.Problems,
        status: int = 200,
    ) -> Response:
        choices = await self._pages.choices(visitor.tenant_id)
        wanted = fields.get("for", "")
        if wanted and wanted not in {value for value, _ in choices}:
            choices = [*choices, (wanted, wanted.partition(":")[2])]
        return self._page(
            request,
            "limit_form.html",
            visitor,
            status,
            tab="",
            fields=fields,
            problems=beside,
            choices=choices,
            metrics=page.CHOICES,
            base=self._base,
        )

    # Alerts -----------------------------------------------------------------------------------------------

    async def show_alerts(self, request: Request, visitor: Visitor) -> Response:
        rows = await self._alert_pages.shown(visitor.tenant_id)
        return self._page(
            request, "alerts.html", visitor, tab="alerts", rows=rows, is_mailing=self._is_mailing
        )

    async def show_alert_form(self, request: Request, visitor: Visitor) -> Response:
        shown = await self._alert_pages.form(visitor.tenant_id, None)
        return self._alert(request, visitor, shown, {"kind": "amount"}, form_errors.NONE)

    async def create_alert(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        try:
            threshold = alert_page.read_threshold(form)
            project = form.get("project") or None
            made = await self._alerts.create(visitor.tenant_id, project, visitor.acting(request), threshold)
        except self._refusals as error:
            status, beside = form_errors.explain(error, alert_page.FIELDS, self._explanations)
            shown = await self._alert_pages.form(visitor.tenant_id, None)
            return self._alert(request, visitor, shown, form, beside, status)
        said = "The alert is set. Send a test to see that it arrives."
        return await self._frame.done(request, visitor, f"/limits/alerts/{made.id}", said)

    async def show_alert(self, request: Request, visitor: Visitor) -> Response:
        shown = await self._alert_pages.form(visitor.tenant_id, request.path_params["alert"])
        assert shown.alert is not None, "one was asked for"
        return self._alert(request, visitor, shown, shown.alert.fields, form_errors.NONE)

    async def change_alert(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        found = await self._alerts.find(visitor.tenant_id, request.path_params["alert"])
        try:
            threshold = alert_page.read_threshold(form)
            await self._alerts.update(
                visitor.tenant_id, found.project_id, found.id, visitor.acting(request), threshold
            )
        except self._refusals as error:
            status, beside = form_errors.explain(error, alert_page.FIELDS, self._explanations)
            shown = await self._alert_pages.form(visitor.tenant_id, found.id)
            return self._alert(request, visitor, shown, form, beside, status)
        return await self._frame.done(request, visitor, "/limits/alerts", "The alert is changed.")

    async def test_alert(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        found = await self._alerts.find(visitor.tenant_id, request.path_params["alert"])
        to = await self._alerts.test(
            visitor.tenant_id,
            found.project_id,
            found.id,
            visitor.acting(request),
            now=datetime.now(UTC),
        )
        if to is None:
            said = "A test was sent in this minute already. Wait a moment before the next."
        elif not to:
            said = "Nobody would hear of it: name an address."
        else:
            said = f"A test is on its way to {', '.join(to[:3])}{' and others' if len(to) > 3 else ''}."
        return await self._frame.done(request, visitor, f"/limits/alerts/{found.id}", said)

    async def delete_alert(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        found = await self._alerts.find(visitor.tenant_id, request.path_params["alert"])
        await self._alerts.delete(visitor.tenant_id, found.project_id, found.id, visitor.acting(request))
        return await self._frame.done(request, visitor, "/limits/alerts", "The alert is deleted.")

    def _alert(
        self,
        request: Request,
        visitor: Visitor,
        shown: AlertForm,
        fields: Mapping[str, str],
        beside: form_errors.Problems,
        status: int = 200,
    ) -> Response:
        return self._page(
            request,
            "alert.html",
            visitor,
            status,
            tab="alerts",
            alert=shown.alert,
            fields=fields,
            problems=beside,
            projects=shown.projects,
            hears=shown.hears,
            mailed=shown.mailed,
            is_mailing=self._is_mailing,
        )

    def _page(
        self, request: Request, template: str, visitor: Visitor, status: int = 200, **context: Any
    ) -> Response:
        return self._frame.page(request, template, status, visitor=visitor, section=LIMITS.id, **context)


def _of_scope(beside: form_errors.Problems, status: int) -> form_errors.Problems:
    """A project or key that is not there is about the choice of it."""
    if status == 404:
        return form_errors.Problems({"for": next(iter(beside.values()))})
    return beside


def _tab_path(scope: str) -> str:
    tab = next(tab for tab, of in page.SCOPES.items() if of == scope)
    return "/limits" if tab == "organisation" else f"/limits?of={tab}"
