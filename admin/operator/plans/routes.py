"""Serves the routes of plans: creating and changing them, and assigning them to tenants.

A draft is the fields of its form and is stored nowhere. A plan can be changed only if it is still as it was
when the change was reviewed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.navigation import PLANS, TENANTS
from admin.operator.plans import form_values
from admin.operator.plans.fields import FIELDS, GROUPS, MAX_FIELDS
from admin.operator.plans.page import PlanDraft, PlanPages
from admin.services import ConsoleServices
from admin.web import form_errors
from admin.web.console import Console
from admin.web.principals import Operator
from billing.previews.service import Preview
from tenants.errors import PlanChanged
from tenants.plans import STANDARD

HERE = PLANS.path
_NAMES = ("name", *(field.name for field in FIELDS))


class PlanRoutes:
    """Below `/operator/plans`, and a tenant's `plan`."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._plans = services.account.plans
        self._tenants = services.account.tenants
        operation = services.operation
        self._pages = PlanPages(
            services.account.plans, services.account.tenants, operation.prices, operation.previews
        )
        self._error_mapping = services.error_mapping
        self._expected_errors = form_errors.expected_errors(services.error_mapping)

    def routes(self) -> list[Route]:
        view, action = self._console.operator_view, self._console.operator_action
        of_tenant = f"{TENANTS.path}/{{tenant}}/plan"
        create, change = (action(one, max_fields=MAX_FIELDS) for one in (self.create, self.change))
        return [
            Route(HERE, view(self.show), methods=["GET"]),
            Route(HERE, create, methods=["POST"]),
            Route(f"{HERE}/new", view(self.show_new), methods=["GET"]),
            Route(f"{HERE}/{{plan}}", view(self.show_one), methods=["GET"]),
            Route(f"{HERE}/{{plan}}", change, methods=["POST"]),
            Route(f"{HERE}/{{plan}}/edit", view(self.edit), methods=["GET"]),
            Route(of_tenant, view(self.show_move), methods=["GET"]),
            Route(of_tenant, action(self.move), methods=["POST"]),
        ]

    async def show(self, request: Request, operator: Operator) -> Response:
        return self._page(request, "operator/plans.html", operator, rows=await self._pages.list())

    async def show_one(self, request: Request, operator: Operator) -> Response:
        page = await self._pages.one(request.path_params["plan"])
        return self._page(request, "operator/plan.html", operator, page=page)

    async def show_new(self, request: Request, operator: Operator) -> Response:
        """Like the standard plan, or like another one."""
        like = request.query_params.get("like")
        plan = STANDARD if like is None else await self._plans.find_by_id(like)
        return self._new(request, operator, {"name": ""} | form_values.written(plan))

    async def create(self, request: Request, operator: Operator, form: dict[str, str]) -> Response:
        values, errors = form_values.read_values(form)
        if errors:
            return self._new(request, operator, form, 422, errors)
        try:
            made = await self._plans.create(
                form.get("name", "").strip(),
                form_values.changes(STANDARD, values),
                operator.acting(request),
            )
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, _NAMES, self._error_mapping)
            return self._new(request, operator, form, status, errors)
        message = f"Plan {made.name} created."
        return await self._console.redirect_with_message(request, operator, f"{HERE}/{made.id}", message)

    async def edit(self, request: Request, operator: Operator) -> Response:
        """The form, with what its fields would change above it once there are any."""
        plan_id, given = request.path_params["plan"], request.query_params
        if "monthly_fee" not in given:
            draft = await self._pages.draft(plan_id, None)
            return self._edit(request, operator, draft, form_values.written(draft.plan))
        values, errors = form_values.read_values(given)
        draft = await self._pages.draft(plan_id, None if errors else values)
        effect = None if errors else await self._pages.effect(draft, values, datetime.now(UTC))
        return self._edit(
            request,
            operator,
            draft,
            given,
            422 if errors else 200,
            errors,
            is_looked_at=True,
            effect=effect,
        )

    async def change(self, request: Request, operator: Operator, form: dict[str, str]) -> Response:
        plan_id = request.path_params["plan"]
        values, errors = form_values.read_values(form)
        draft = await self._pages.draft(plan_id, None if errors else values)
        if errors or not draft.differences:
            status = 422 if errors else 409
            return self._edit(request, operator, draft, form, status, errors, is_looked_at=True)
        try:
            if form.get("seen") != draft.seen:
                raise PlanChanged(draft.plan.name)
            await self._plans.set(
                draft.plan.name,
                form_values.changes(draft.plan, values),
                operator.acting(request),
                seen=draft.seen,
            )
        except PlanChanged:
            errors = form_errors.FormErrors(
                form="Another operator changed this plan. Review the changes again."
            )
            draft = await self._pages.draft(plan_id, values)
            return self._edit(request, operator, draft, form, 409, errors, is_looked_at=True)
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, _NAMES, self._error_mapping)
            return self._edit(request, operator, draft, form, status, errors)
        message = f"Plan {draft.plan.name} updated for {_tenants(draft.tenants)}."
        return await self._console.redirect_with_message(request, operator, f"{HERE}/{plan_id}", message)

    async def show_move(self, request: Request, operator: Operator) -> Response:
        """What another plan would change for a tenant."""
        plan = request.query_params.get("plan", STANDARD.name)
        page = await self._pages.move(request.path_params["tenant"], plan)
        return self._console.render(
            request, "operator/plan_move.html", principal=operator, section=TENANTS.id, page=page
        )

    async def move(self, request: Request, operator: Operator, form: dict[str, str]) -> Response:
        tenant = await self._tenants.find_tenant(request.path_params["tenant"])
        plan = form.get("plan", "")
        await self._plans.set_tenant_plan(tenant.id, plan, operator.acting(request))
        message = f"{tenant.name} is now on the {plan} plan."
        return await self._console.redirect_with_message(
            request, operator, f"{TENANTS.path}/{tenant.id}", message
        )

    def _new(
        self,
        request: Request,
        operator: Operator,
        given: Mapping[str, str],
        status: int = 200,
        errors: form_errors.FormErrors = form_errors.NO_ERRORS,
    ) -> Response:
        return self._form(request, "operator/plan_new.html", operator, given, status, errors)

    def _edit(
        self,
        request: Request,
        operator: Operator,
        draft: PlanDraft,
        given: Mapping[str, str],
        status: int = 200,
        errors: form_errors.FormErrors = form_errors.NO_ERRORS,
        *,
        is_looked_at: bool = False,
        effect: Preview | None = None,
    ) -> Response:
        context = {"draft": draft, "is_looked_at": is_looked_at, "effect": effect}
        return self._form(request, "operator/plan_edit.html", operator, given, status, errors, **context)

    def _form(
        self,
        request: Request,
        template: str,
        operator: Operator,
        given: Mapping[str, str],
        status: int,
        errors: form_errors.FormErrors,
        **context: Any,
    ) -> Response:
        fields = {name: given.get(name, "") for name in _NAMES}
        return self._page(
            *(request, template, operator, status), groups=GROUPS, fields=fields, errors=errors, **context
        )

    def _page(
        self, request: Request, template: str, operator: Operator, status: int = 200, **context: Any
    ) -> Response:
        return self._console.render(
            request, template, status, principal=operator, section=PLANS.id, **context
        )


def _tenants(number: int) -> str:
    return {0: "no tenants", 1: "1 tenant"}.get(number, f"{number:,} tenants")
