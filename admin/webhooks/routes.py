"""Serves the routes of webhook endpoints: creating, editing, testing and deleting them, and resending
deliveries.

A signing secret is shown once, in answer to the form that created it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.navigation import WEBHOOKS
from admin.services import ConsoleServices
from admin.web import form_errors
from admin.web.console import Console
from admin.web.principals import TenantUser
from admin.web.request_info import after_of
from admin.webhooks import page
from admin.webhooks.page import WebhooksPage
from tenants.roles import Right

_DELIVERY_ID = re.compile(r"dlv_[0-9a-zA-Z]{1,40}")


class WebhookRoutes:
    """Below `/webhooks`. Paths with a word where others have an id come first."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._webhooks = services.billing.webhooks
        self._pages = WebhooksPage(services.billing.webhooks)
        self._error_mapping = services.error_mapping
        self._expected_errors = form_errors.expected_errors(services.error_mapping)

    def routes(self) -> list[Route]:
        view, action = self._console.view, self._console.action
        write: Right = "webhooks.write"
        one = "/webhooks/{endpoint}"
        return [
            Route("/webhooks", view(self.show_list, WEBHOOKS.right), methods=["GET"]),
            Route("/webhooks", action(self.create, write, members_alone=True), methods=["POST"]),
            Route("/webhooks/new", view(self.show_form, write), methods=["GET"]),
            Route(one, view(self.show, WEBHOOKS.right), methods=["GET"]),
            Route(f"{one}/change", view(self.show_change, write), methods=["GET"]),
            Route(f"{one}/change", action(self.change, write), methods=["POST"]),
            Route(f"{one}/rotate", action(self.rotate, write, members_alone=True), methods=["POST"]),
            Route(f"{one}/test", action(self.test, write), methods=["POST"]),
            Route(f"{one}/delete", action(self.delete, write), methods=["POST"]),
            Route(f"{one}/deliveries/{{delivery}}/resend", action(self.resend, write), methods=["POST"]),
        ]

    async def show_list(self, request: Request, principal: TenantUser) -> Response:
        endpoints = await self._pages.index(principal.tenant_id)
        return self._page(request, "webhooks.html", principal, rows=endpoints)

    async def show(self, request: Request, principal: TenantUser) -> Response:
        return await self._one(request, principal, form_errors.NO_ERRORS)

    async def show_form(self, request: Request, principal: TenantUser) -> Response:
        ticked = {f"{page.EVENT_FIELD}{name}": "on" for name, _ in page.CHOICES}
        return self._form(request, principal, None, ticked, form_errors.NO_ERRORS)

    async def create(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        try:
            made, secret = await self._webhooks.create(
                principal.tenant_id,
                principal.acting(request),
                name=form.get("name", ""),
                url=form.get("url", "").strip(),
                event_types=page.read_events(form),
            )
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, page.FIELDS, self._error_mapping)
            return self._form(request, principal, None, form, errors, status)
        return self._made(request, principal, page.endpoint_row(made), secret, "made")

    async def show_change(self, request: Request, principal: TenantUser) -> Response:
        endpoint = await self._pages.one(principal.tenant_id, request.path_params["endpoint"])
        return self._form(request, principal, endpoint, page.fields_of(endpoint), form_errors.NO_ERRORS)

    async def change(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        endpoint = await self._pages.one(principal.tenant_id, request.path_params["endpoint"])
        try:
            await self._webhooks.update(
                principal.tenant_id,
                endpoint.id,
                principal.acting(request),
                name=form.get("name", ""),
                url=form.get("url", "").strip(),
                event_types=page.read_events(form),
            )
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, page.FIELDS, self._error_mapping)
            return self._form(request, principal, endpoint, form, errors, status)
        message = "Endpoint updated."
        return await self._console.redirect_with_message(
            request, principal, f"/webhooks/{endpoint.id}", message
        )

    async def rotate(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        made, secret = await self._webhooks.rotate_secret(
            principal.tenant_id,
            request.path_params["endpoint"],
            principal.acting(request),
            keep_old=form.get("keep_old") == "yes",
        )
        return self._made(request, principal, page.endpoint_row(made), secret, "rotated")

    async def test(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        endpoint_id, event_type = request.path_params["endpoint"], form.get("event_type", "")
        try:
            status = await self._webhooks.test(
                principal.tenant_id, endpoint_id, principal.acting(request), event_type
            )
        except self._expected_errors as error:
            refused, errors = form_errors.explain(error, page.FIELDS, self._error_mapping)
            if refused == 404:
                raise
            return await self._one(request, principal, _about_test(errors), event_type, refused)
        if not 200 <= status < 300:
            words = (
                f"The endpoint responded with {status}. A delivery succeeds with a status from 200 to 299."
            )
            return await self._one(
                request, principal, form_errors.FormErrors(event_type=words), event_type, 422
            )
        message = f"Test event delivered: the endpoint responded with {status}."
        return await self._console.redirect_with_message(
            request, principal, f"/webhooks/{endpoint_id}", message
        )

    async def resend(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        endpoint_id, delivery_id = request.path_params["endpoint"], request.path_params["delivery"]
        await self._webhooks.retry(principal.tenant_id, endpoint_id, delivery_id, principal.acting(request))
        message = "The event will be resent within seconds with the same ID."
        return await self._console.redirect_with_message(
            request, principal, f"/webhooks/{endpoint_id}", message
        )

    async def delete(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        endpoint = await self._pages.one(principal.tenant_id, request.path_params["endpoint"])
        await self._webhooks.delete(principal.tenant_id, endpoint.id, principal.acting(request))
        message = f"{endpoint.name} was deleted."
        return await self._console.redirect_with_message(request, principal, "/webhooks", message)

    async def _one(
        self,
        request: Request,
        principal: TenantUser,
        errors: form_errors.FormErrors,
        chosen: str = "",
        status: int = 200,
    ) -> Response:
        after = after_of(request, _DELIVERY_ID)
        endpoint = await self._pages.one(principal.tenant_id, request.path_params["endpoint"])
        deliveries = await self._pages.deliveries(principal.tenant_id, endpoint.id, after)
        return self._page(
            request,
            "webhook.html",
            principal,
            status,
            endpoint=endpoint,
            page=deliveries,
            errors=errors,
            chosen=chosen or endpoint.events[0],
            types=[(name, name) for name, _ in page.CHOICES],
            is_first=after is None,
        )

    def _form(
        self,
        request: Request,
        principal: TenantUser,
        endpoint: page.EndpointRow | None,
        fields: Mapping[str, str],
        errors: form_errors.FormErrors,
        status: int = 200,
    ) -> Response:
        return self._page(
            request,
            "webhook_form.html",
            principal,
            status,
            endpoint=endpoint,
            fields=fields,
            errors=errors,
            choices=page.CHOICES,
            event_field=page.EVENT_FIELD,
        )

    def _made(
        self, request: Request, principal: TenantUser, endpoint: page.EndpointRow, secret: str, how: str
    ) -> Response:
        return self._page(
            request, "webhook_secret.html", principal, 201, endpoint=endpoint, secret=secret, how=how
        )

    def _page(
        self, request: Request, template: str, principal: TenantUser, status: int = 200, **context: Any
    ) -> Response:
        return self._console.render(
            request, template, status, principal=principal, section=WEBHOOKS.id, **context
        )


def _about_test(errors: form_errors.FormErrors) -> form_errors.FormErrors:
    """Whatever it is about: the one field of the form is the event."""
    return form_errors.FormErrors(event_type=next(iter(errors.values()), "The test failed."))
