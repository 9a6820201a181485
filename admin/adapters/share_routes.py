"""Serves the forms of sharing: offering an adapter, ending a share, and answering another's offer."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.adapters.shares_page import FIELDS, SharesPage, read_offer
from admin.services import ConsoleServices
from admin.web import form_errors
from admin.web.console import Console
from admin.web.principals import TenantUser


class ShareRoutes:
    """Below `/adapters/{adapter}/shares`, and below `/shares` for those of other organizations."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._sharing = services.adapters.sharing
        self._catalogue = services.adapters.catalogue
        self._page = SharesPage(services.adapters.sharing, services.usage)
        self._error_mapping = services.error_mapping
        self._expected_errors = form_errors.expected_errors(services.error_mapping)

    def routes(self) -> list[Route]:
        own, theirs = "/adapters/{adapter}/shares", "/shares/{share}"
        act = self._console.action
        return [
            Route(f"{own}/new", self._console.view(self.show_form, "adapters.write"), methods=["GET"]),
            Route(own, act(self.offer, members_alone=True), methods=["POST"]),
            Route(f"{own}/{{share}}/end", act(self.end), methods=["POST"]),
            # What another organization asks for is paid: no operator accepts it for a member.
            Route(f"{theirs}/accept", act(self.accept, members_alone=True), methods=["POST"]),
            Route(f"{theirs}/decline", act(self.decline), methods=["POST"]),
            Route(f"{theirs}/end", act(self.leave), methods=["POST"]),
        ]

    # The owner ----------------------------------------------------------------------------------------------

    async def show_form(self, request: Request, principal: TenantUser) -> Response:
        return await self._form(request, principal, {}, form_errors.NO_ERRORS)

    async def offer(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        try:
            made = await self._sharing.offer(
                principal.tenant_id,
                request.path_params["adapter"],
                read_offer(form),
                by=principal.acting(request),
            )
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, FIELDS, self._error_mapping)
            return await self._form(request, principal, form, errors, status)
        return await self._back(request, principal, f"Offered to {made.recipient}, which can now accept it.")

    async def end(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        ended = await self._sharing.end(
            principal.tenant_id,
            request.path_params["adapter"],
            request.path_params["share"],
            by=principal.acting(request),
        )
        return await self._back(request, principal, f"No longer shared with {ended.recipient}.")

    async def _form(
        self,
        request: Request,
        principal: TenantUser,
        fields: Mapping[str, str],
        errors: form_errors.FormErrors,
        status: int = 200,
    ) -> Response:
        shown = await self._catalogue.get(principal.tenant_id, request.path_params["adapter"])
        return self._console.render(
            request,
            "share_new.html",
            status,
            principal=principal,
            section="adapters",
            adapter=shown.adapter,
            fields=fields,
            errors=errors,
            most_percent=self._page.most_percent,
        )

    async def _back(self, request: Request, principal: TenantUser, message: str) -> Response:
        place = f"/adapters/{request.path_params['adapter']}"
        return await self._console.redirect_with_message(request, principal, place, message)

    # The other organization ---------------------------------------------------------------------------------

    async def accept(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        share = await self._sharing.accept(
            principal.tenant_id, request.path_params["share"], by=principal.acting(request)
        )
        message = f"Accepted. Use {share.row.model} as the model."
        return await self._console.redirect_with_message(request, principal, "/adapters", message)

    async def decline(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        share = await self._sharing.decline(
            principal.tenant_id, request.path_params["share"], by=principal.acting(request)
        )
        message = f"The offer of {share.owner} was declined."
        return await self._console.redirect_with_message(request, principal, "/adapters", message)

    async def leave(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        share = await self._sharing.leave(
            principal.tenant_id, request.path_params["share"], by=principal.acting(request)
        )
        message = f"{share.row.model} can no longer be used."
        return await self._console.redirect_with_message(request, principal, "/adapters", message)
