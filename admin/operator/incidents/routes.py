"""Serves the routes of incidents and planned maintenance: listing, opening, updating and resolving them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.navigation import INCIDENTS
from admin.operator.incidents import page
from admin.services import ConsoleServices
from admin.web import form_errors
from admin.web.console import Console
from admin.web.principals import Operator
from sla.status.components import title_of

HERE = INCIDENTS.path
_FIELDS = ("title", "severity", "began_at", "planned_until", "note", "components")


class IncidentRoutes:
    """Below `/operator/incidents`."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._incidents = services.operation.incidents
        self._burn = services.operation.burn
        self._components = services.operation.components
        self._error_mapping = services.error_mapping
        self._expected_errors = form_errors.expected_errors(services.error_mapping)

    def routes(self) -> list[Route]:
        view, action = self._console.operator_view, self._console.operator_action
        one = f"{HERE}/{{incident}}"
        return [
            Route(HERE, view(self.show), methods=["GET"]),
            Route(HERE, action(self.open), methods=["POST"]),
            Route(one, view(self.show_one), methods=["GET"]),
            Route(f"{one}/note", action(self.note), methods=["POST"]),
            Route(f"{one}/public", action(self.set_public), methods=["POST"]),
            Route(f"{one}/close", action(self.close), methods=["POST"]),
        ]

    async def show(self, request: Request, operator: Operator) -> Response:
        return await self._list(request, operator, {}, form_errors.NO_ERRORS)

    async def open(self, request: Request, operator: Operator, form: dict[str, str]) -> Response:
        try:
            made = await self._incidents.open(
                form.get("title", ""),
                form.get("severity", ""),
                operator.acting(request),
                is_public="is_public" in form,
                began_at=page.read_moment("began_at", form.get("began_at", "")),
                note=form.get("note", ""),
                planned_until=page.read_moment("planned_until", form.get("planned_until", "")),
                components=page.chosen(form),
            )
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, _FIELDS, self._error_mapping)
            return await self._list(request, operator, form, errors, status)
        return await self._console.redirect_with_message(
            request,
            operator,
            f"{HERE}/{made.id}",
            "Incident opened." if made.planned_until is None else "Maintenance planned.",
        )

    async def show_one(self, request: Request, operator: Operator) -> Response:
        return await self._one(request, operator, {}, form_errors.NO_ERRORS)

    async def note(self, request: Request, operator: Operator, form: dict[str, str]) -> Response:
        incident_id = request.path_params["incident"]
        try:
            await self._incidents.note(
                incident_id, form.get("note", ""), operator.acting(request), is_public="is_public" in form
            )
        except ValueError as error:
            status, errors = form_errors.explain(error, ("note",), self._error_mapping)
            return await self._one(request, operator, form, errors, status)
        return await self._console.redirect_with_message(
            request, operator, f"{HERE}/{incident_id}", "Update posted."
        )

    async def set_public(self, request: Request, operator: Operator, form: dict[str, str]) -> Response:
        incident_id, is_public = request.path_params["incident"], form.get("public") == "yes"
        await self._incidents.set_public(incident_id, is_public, operator.acting(request))
        message = (
            "The incident is now visible to tenants."
            if is_public
            else "The incident is no longer visible to tenants."
        )
        return await self._console.redirect_with_message(request, operator, f"{HERE}/{incident_id}", message)

    async def close(self, request: Request, operator: Operator, form: dict[str, str]) -> Response:
        incident_id = request.path_params["incident"]
        await self._incidents.close(incident_id, operator.acting(request))
        return await self._console.redirect_with_message(
            request, operator, f"{HERE}/{incident_id}", "Resolved."
        )

    async def _list(
        self,
        request: Request,
        operator: Operator,
        given: Mapping[str, str],
        errors: form_errors.FormErrors,
        status: int = 200,
    ) -> Response:
        after = request.query_params.get("after") or None
        found = await self._incidents.page(after=after, limit=page.PAGE + 1)
        return self._console.render(
            request,
            "operator/incidents.html",
            status,
            principal=operator,
            section=INCIDENTS.id,
            rows=[page.row(one, datetime.now(UTC)) for one in found[: page.PAGE]],
            next_after=found[page.PAGE - 1].id if len(found) > page.PAGE else None,
            is_first=after is None,
            burns=page.burn_rows(await self._burn.now()),
            widths=page.WIDTHS,
            severities=page.SEVERITY_CHOICES,
            fields={name: given.get(name, "") for name in (*_FIELDS, "is_public")},
            components=await self._components.titles(),
            chosen=page.chosen(given),
            errors=errors,
        )

    async def _one(
        self,
        request: Request,
        operator: Operator,
        given: Mapping[str, str],
        errors: form_errors.FormErrors,
        status: int = 200,
    ) -> Response:
        incident, notes = await self._incidents.find(request.path_params["incident"])
        return self._console.render(
            request,
            "operator/incident.html",
            status,
            principal=operator,
            section=INCIDENTS.id,
            row=page.row(incident, datetime.now(UTC)),
            notes=notes,
            affected=", ".join(map(title_of, incident.components)),
            burns=page.burn_rows(await self._burn.now()),
            widths=page.WIDTHS,
            note=given.get("note", ""),
            errors=errors,
        )
