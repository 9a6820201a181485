"""Serves the routes of spend alerts: the list, and creating, changing, testing and deleting one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.limits import alerts_page as alert_page
from admin.limits.alerts_page import AlertForm, AlertsPage
from admin.navigation import LIMITS
from admin.services import ConsoleServices
from admin.web import form_errors
from admin.web.console import Console
from admin.web.principals import TenantUser
from tenants.roles import Right


class AlertRoutes:
    """Below `/limits/alerts`. Fixed paths come before those with an id."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        account, billing = services.account, services.billing
        self._alerts, self._is_mailing = billing.alerts, billing.is_mailing
        self._alert_pages = AlertsPage(
            billing.alerts, account.limits, billing.quotas, services.names, account.projects
        )
        self._error_mapping = services.error_mapping
        self._expected_errors = form_errors.expected_errors(services.error_mapping)

    def routes(self) -> list[Route]:
        view, action = self._console.view, self._console.action
        read, alert = LIMITS.right, "/limits/alerts/{alert}"
        write: Right = "limits.write"
        return [
            Route("/limits/alerts", view(self.show_alerts, read), methods=["GET"]),
            Route("/limits/alerts", action(self.create_alert, write), methods=["POST"]),
            Route("/limits/alerts/new", view(self.show_alert_form, write), methods=["GET"]),
            Route(alert, view(self.show_alert, read), methods=["GET"]),
            Route(alert, action(self.change_alert, write), methods=["POST"]),
            Route(f"{alert}/test", action(self.test_alert, write), methods=["POST"]),
            Route(f"{alert}/delete", action(self.delete_alert, write), methods=["POST"]),
        ]

    async def show_alerts(self, request: Request, principal: TenantUser) -> Response:
        rows = await self._alert_pages.index(principal.tenant_id)
        return self._page(
            request, "alerts.html", principal, tab="alerts", rows=rows, is_mailing=self._is_mailing
        )

    async def show_alert_form(self, request: Request, principal: TenantUser) -> Response:
        alert_form = await self._alert_pages.form(principal.tenant_id, None)
        return self._alert(request, principal, alert_form, {"kind": "amount"}, form_errors.NO_ERRORS)

    async def create_alert(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        try:
            threshold = alert_page.read_threshold(form)
            project = form.get("project") or None
            made = await self._alerts.create(
                principal.tenant_id, project, principal.acting(request), threshold
            )
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, alert_page.FIELDS, self._error_mapping)
            alert_form = await self._alert_pages.form(principal.tenant_id, None)
            return self._alert(request, principal, alert_form, form, errors, status)
        message = "Alert created. Send a test to check delivery."
        return await self._console.redirect_with_message(
            request, principal, f"/limits/alerts/{made.id}", message
        )

    async def show_alert(self, request: Request, principal: TenantUser) -> Response:
        alert_form = await self._alert_pages.form(principal.tenant_id, request.path_params["alert"])
        assert alert_form.alert is not None, "one was asked for"
        return self._alert(request, principal, alert_form, alert_form.alert.fields, form_errors.NO_ERRORS)

    async def change_alert(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        found = await self._alerts.find(principal.tenant_id, request.path_params["alert"])
        try:
            threshold = alert_page.read_threshold(form)
            await self._alerts.update(
                principal.tenant_id, found.project_id, found.id, principal.acting(request), threshold
            )
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, alert_page.FIELDS, self._error_mapping)
            alert_form = await self._alert_pages.form(principal.tenant_id, found.id)
            return self._alert(request, principal, alert_form, form, errors, status)
        return await self._console.redirect_with_message(
            request, principal, "/limits/alerts", "Alert updated."
        )

    async def test_alert(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        found = await self._alerts.find(principal.tenant_id, request.path_params["alert"])
        to = await self._alerts.test(
            principal.tenant_id,
            found.project_id,
            found.id,
            principal.acting(request),
            now=datetime.now(UTC),
        )
        if to is None:
            message = "A test was sent less than a minute ago. Wait a moment before you send another."
        elif not to:
            message = "No recipients. Add an email address first."
        else:
            message = f"Test sent to {', '.join(to[:3])}{' and others' if len(to) > 3 else ''}."
        return await self._console.redirect_with_message(
            request, principal, f"/limits/alerts/{found.id}", message
        )

    async def delete_alert(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        found = await self._alerts.find(principal.tenant_id, request.path_params["alert"])
        await self._alerts.delete(principal.tenant_id, found.project_id, found.id, principal.acting(request))
        return await self._console.redirect_with_message(
            request, principal, "/limits/alerts", "Alert deleted."
        )

    def _alert(
        self,
        request: Request,
        principal: TenantUser,
        alert_form: AlertForm,
        fields: Mapping[str, str],
        errors: form_errors.FormErrors,
        status: int = 200,
    ) -> Response:
        return self._page(
            request,
            "alert.html",
            principal,
            status,
            tab="alerts",
            alert=alert_form.alert,
            fields=fields,
            errors=errors,
            projects=alert_form.projects,
            hears=alert_form.hears,
            mailed=alert_form.mailed,
            is_mailing=self._is_mailing,
        )

    def _page(
        self, request: Request, template: str, principal: TenantUser, status: int = 200, **context: Any
    ) -> Response:
        return self._console.render(
            request, template, status, principal=principal, section=LIMITS.id, **context
        )
