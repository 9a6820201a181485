"""Serves the form that creates a tenant, and invites the first owner of one without members."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.navigation import TENANTS
from admin.services import ConsoleServices
from admin.web import form_errors
from admin.web.console import Console
from admin.web.principals import Operator
from admin.web.request_info import link_with_token
from tenants.models import Tenant
from tenants.plans import STANDARD
from tenants.validation import checked_email

HERE = TENANTS.path
_FIELDS = ("name", "email", "plan")


class TenantCreationRoutes:
    """At `/operator/tenants/new`, and a tenant's `invite`. Come before the routes of one tenant."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._account = services.account
        self._origin = services.sign_in.url
        self._error_mapping = services.error_mapping
        self._expected_errors = form_errors.expected_errors(services.error_mapping)

    def routes(self) -> list[Route]:
        action = self._console.operator_action
        return [
            Route(f"{HERE}/new", self._console.operator_view(self.show_form), methods=["GET"]),
            Route(f"{HERE}/new", action(self.create), methods=["POST"]),
            Route(f"{HERE}/{{tenant}}/invite", action(self.invite), methods=["POST"]),
        ]

    async def show_form(self, request: Request, operator: Operator) -> Response:
        return await self._form(request, operator, {"plan": STANDARD.name})

    async def create(self, request: Request, operator: Operator, form: dict[str, str]) -> Response:
        """Checks the other fields before the tenant is created, so that a mistake leaves nothing behind."""
        actor = operator.acting(request)
        try:
            email = checked_email(form.get("email", "").strip())
            plan = await self._account.plans.find(form.get("plan", ""))
            tenant = await self._account.tenants.create_tenant(form.get("name", "").strip(), actor)
            if plan.id != tenant.plan_id:
                await self._account.plans.set_tenant_plan(tenant.id, plan.name, actor)
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, _FIELDS, self._error_mapping)
            return await self._form(request, operator, form, status, errors)
        return await self._invite(request, operator, tenant, email)

    async def invite(self, request: Request, operator: Operator, form: dict[str, str]) -> Response:
        """Replaces an invitation whose link was lost, too."""
        tenant = await self._account.tenants.find_tenant(request.path_params["tenant"])
        try:
            email = checked_email(form.get("email", "").strip())
        except ValueError as error:
            _, errors = form_errors.explain(error, _FIELDS, self._error_mapping)
            message = errors["email"] or errors[form_errors.FORM]
            return await self._console.redirect_with_message(
                request, operator, f"{HERE}/{tenant.id}", f"No invitation was created. {message}"
            )
        return await self._invite(request, operator, tenant, email)

    async def _invite(self, request: Request, operator: Operator, tenant: Tenant, email: str) -> Response:
        made = await self._account.invites.create(tenant.id, email, "owner", operator.acting(request))
        return self._console.render(
            request,
            "operator/tenant_invited.html",
            201,
            principal=operator,
            section=TENANTS.id,
            tenant=tenant,
            invite=made.invite,
            link=link_with_token(request, self._origin, "/join", made.token),
        )

    async def _form(
        self,
        request: Request,
        operator: Operator,
        given: Mapping[str, str],
        status: int = 200,
        errors: form_errors.FormErrors = form_errors.NO_ERRORS,
    ) -> Response:
        return self._console.render(
            request,
            "operator/tenant_new.html",
            status,
            principal=operator,
            section=TENANTS.id,
            fields={name: given.get(name, "") for name in _FIELDS},
            errors=errors,
            plans=[(plan.name, plan.name) for plan in await self._account.plans.list()],
        )
