"""Webhook endpoints over HTTP: making, changing, testing and removing them, and sending deliveries again.

Owns the paths, and that a signing secret is shown once, on the answer to the form that made it.
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
from admin.web.console import Frame
from admin.web.principals import Visitor
from admin.web.request_info import after_of
from admin.webhooks import page
from admin.webhooks.page import WebhooksPage
from tenants.roles import Right

_DELIVERY_ID = re.compile(r"dlv_[0-9a-zA-Z]{1,40}")


class WebhookRoutes:
    """Below `/webhooks`. Paths with a word where others have an id come first."""

    def __init__(self, frame: Frame, services: ConsoleServices) -> None:
        self._frame = frame
        self._webhooks = services.billing.webhooks
        self._pages = WebhooksPage(services.billing.webhooks)
        self._explanations = services.explanations
        self._refusals = form_errors.refusals(services.explanations)

    def routes(self) -> list[Route]:
        serving, changing = self._frame.serving, self._frame.changing
        write: Right = "webhooks.write"
        one = "/webhooks/{endpoint}"
        return [
            Route("/webhooks", serving(self.show_list, WEBHOOKS.right), methods=["GET"]),
            Route("/webhooks", changing(self.create, write, members_alone=True), methods=["POST"]),
            Route("/webhooks/new", serving(self.show_form, write), methods=["GET"]),
            Route(one, serving(self.show, WEBHOOKS.right), methods=["GET"]),
            Route(f"{one}/change", serving(self.show_change, write), methods=["GET"]),
            Route(f"{one}/change", changing(self.change, write), methods=["POST"]),
            Route(f"{one}/rotate", changing(self.rotate, write, members_alone=True), methods=["POST"]),
            Route(f"{one}/test", changing(self.test, write), methods=["POST"]),
            Route(f"{one}/delete", changing(self.delete, write), methods=["POST"]),
            Route(f"{one}/deliveries/{{delivery}}/resend", changing(self.resend, write), methods=["POST"]),
        ]

    async def show_list(self, request: Request, visitor: Visitor) -> Response:
        shown = await self._pages.shown(visitor.tenant_id)
        return self._page(request, "webhooks.html", visitor, rows=shown)

    async def show(self, request: Request, visitor: Visitor) -> Response:
        return await self._one(request, visitor, form_errors.NONE)

    async def show_form(self, request: Request, visitor: Visitor) -> Response:
        ticked = {f"{page.EVENT_FIELD}{name}": "on" for name, _ in page.CHOICES}
        return self._form(request, visitor, None, ticked, form_errors.NONE)

    async def create(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        try:
            made, secret = await self._webhooks.create(
                visitor.tenant_id,
                visitor.acting(request),
                name=form.get("name", ""),
                url=form.get("url", "").strip(),
                event_types=page.read_events(form),
            )
        except self._refusals as error:
            status, beside = form_errors.explain(error, page.FIELDS, self._explanations)
            return self._form(request, visitor, None, form, beside, status)
        return self._made(request, visitor, page.endpoint_row(made), secret, "made")

    async def show_change(self, request: Request, visitor: Visitor) -> Response:
        shown = await self._pages.one(visitor.tenant_id, request.path_params["endpoint"])
        return self._form(request, visitor, shown, page.fields_of(shown), form_errors.NONE)

    async def change(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        shown = await self._pages.one(visitor.tenant_id, request.path_params["endpoint"])
        try:
            await self._webhooks.update(
                visitor.tenant_id,
                shown.id,
                visitor.acting(request),
                name=form.get("name", ""),
                url=form.get("url", "").strip(),
                event_types=page.read_events(form),
            )
        except self._refusals as error:
            status, beside = form_errors.explain(error, page.FIELDS, self._explanations)
            return self._form(request, visitor, shown, form, beside, status)
        said = "Changed. It is told of what happens from now on."
        return await self._frame.done(request, visitor, f"/webhooks/{shown.id}", said)

    async def rotate(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        made, secret = await self._webhooks.rotate_secret(
            visitor.tenant_id,
            request.path_params["endpoint"],
            visitor.acting(request),
            keep_old=form.get("keep_old") == "yes",
        )
        return self._made(request, visitor, page.endpoint_row(made), secret, "rotated")

    async def test(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        endpoint_id, event_type = request.path_params["endpoint"], form.get("event_type", "")
        try:
            status = await self._webhooks.test(
                visitor.tenant_id, endpoint_id, visitor.acting(request), event_type
            )
        except self._refusals as error:
            refused, beside = form_errors.explain(error, page.FIELDS, self._explanations)
            if refused == 404:
                raise
            return await self._one(request, visitor, _about_test(beside), event_type, refused)
        if not 200 <= status < 300:
            words = f"It answered {status}. A delivery is taken when the answer is from 200 to 299."
            return await self._one(request, visitor, form_errors.Problems(event_type=words), event_type, 422)
        said = f"It took the test event and answered {status}."
        return await self._frame.done(request, visitor, f"/webhooks/{endpoint_id}", said)

    async def resend(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        endpoint_id, delivery_id = request.path_params["endpoint"], request.path_params["delivery"]
        await self._webhooks.retry(visitor.tenant_id, endpoint_id, delivery_id, visitor.acting(request))
        said = "It is sent again within seconds, under the same id."
        return await self._frame.done(request, visitor, f"/webhooks/{endpoint_id}", said)

    async def delete(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        shown = await self._pages.one(visitor.tenant_id, request.path_params["endpoint"])
        await self._webhooks.delete(visitor.tenant_id, shown.id, visitor.acting(request))
        said = f"{shown.name} is deleted: nothing is sent there any more."
        return await self._frame.done(request, visitor, "/webhooks", said)

    async def _one(
        self,
        request: Request,
        visitor: Visitor,
        beside: form_errors.Problems,
        chosen: str = "",
        status: int = 200,
    ) -> Response:
        after = after_of(request, _DELIVERY_ID)
        shown = await self._pages.one(visitor.tenant_id, request.path_params["endpoint"])
        deliveries = await self._pages.deliveries(visitor.tenant_id, shown.id, after)
        return self._page(
            request,
            "webhook.html",
            visitor,
            status,
            endpoint=shown,
            page=deliveries,
            problems=beside,
            chosen=chosen or shown.events[0],
            types=[(name, name) for name, _ in page.CHOICES],
            is_first=after is None,
        )

    def _form(
        self,
        request: Request,
        visitor: Visitor,
        endpoint: page.EndpointRow | None,
        fields: Mapping[str, str],
        beside: form_errors.Problems,
        status: int = 200,
    ) -> Response:
        return self._page(
            request,
            "webhook_form.html",
            visitor,
            status,
            endpoint=endpoint,
            fields=fields,
            problems=beside,
            choices=page.CHOICES,
            event_field=page.EVENT_FIELD,
        )

    def _made(
        self, request: Request, visitor: Visitor, endpoint: page.EndpointRow, secret: str, how: str
    ) -> Response:
        return self._page(
            request, "webhook_secret.html", visitor, 201, endpoint=endpoint, secret=secret, how=how
        )

    def _page(
        self, request: Request, template: str, visitor: Visitor, status: int = 200, **context: Any
    ) -> Response:
        return self._frame.page(request, template, status, visitor=visitor, section=WEBHOOKS.id, **context)


def _about_test(beside: form_errors.Problems) -> form_errors.Problems:
    """Whatever it is about: the one field of the form is the event."""
    return form_errors.Problems(event_type=next(iter(beside.values()), "This did not work."))
