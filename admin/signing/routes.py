"""Serves an organization's signing keys, and whether its adapters must be signed. Only owners change them."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.navigation import SETTINGS
from admin.services import ConsoleServices
from admin.web import authorization, form_errors
from admin.web.console import Console
from admin.web.principals import TenantUser
from admin.web.request_info import origin_of
from tenants.roles import Right

PATH = f"{SETTINGS.path}/signing"
_CHOICES = {"yes": True, "no": False}


class SigningRoutes:
    """Below `/settings/signing`."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._keys = services.account.signing_keys
        self._platform = services.adapters.signatures
        self._url = services.sign_in.url
        self._error_mapping = services.error_mapping
        self._expected_errors = form_errors.expected_errors(services.error_mapping)

    def routes(self) -> list[Route]:
        view, action = self._console.view, self._console.action
        write: Right = "projects.write"
        return [
            Route(PATH, view(self.show, SETTINGS.right), methods=["GET"]),
            Route(PATH, action(self.require, write), methods=["POST"]),
            Route(f"{PATH}/keys", action(self.add, write), methods=["POST"]),
            Route(f"{PATH}/keys/{{signing_key}}/remove", action(self.remove, write), methods=["POST"]),
        ]

    async def show(self, request: Request, principal: TenantUser) -> Response:
        return await self._page(request, principal)

    async def require(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        authorization.require_owner(principal)
        signed_only = _CHOICES.get(form.get("signed_adapters_only", ""))
        if signed_only is None:
            raise HTTPException(400, "Choose whether adapters must be signed.")
        await self._keys.accept_signed_only(principal.tenant_id, signed_only, principal.acting(request))
        message = (
            "New adapters must be signed from now on."
            if signed_only
            else "Unsigned adapters are accepted again."
        )
        return await self._console.redirect_with_message(request, principal, PATH, message)

    async def add(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        authorization.require_owner(principal)
        name, pem = form.get("name", ""), form.get("public_key", "")
        try:
            made = await self._keys.add(principal.tenant_id, name, pem, principal.acting(request))
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, ("name", "public_key"), self._error_mapping)
            return await self._page(request, principal, status, errors, form)
        message = f"Key {made.name} added."
        return await self._console.redirect_with_message(request, principal, PATH, message)

    async def remove(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        authorization.require_owner(principal)
        key_id = request.path_params["signing_key"]
        await self._keys.remove(principal.tenant_id, key_id, principal.acting(request))
        return await self._console.redirect_with_message(request, principal, PATH, "Key removed.")

    async def _page(
        self,
        request: Request,
        principal: TenantUser,
        status: int = 200,
        errors: form_errors.FormErrors = form_errors.NO_ERRORS,
        fields: dict[str, str] | None = None,
    ) -> Response:
        return self._console.render(
            request,
            "signing.html",
            status,
            principal=principal,
            section=SETTINGS.id,
            signed_only=await self._keys.accepts_signed_only(principal.tenant_id),
            keys=await self._keys.list(principal.tenant_id),
            platform_keys=[*self._platform.keys],
            key_url=f"{self._url or origin_of(request)}/.well-known/adapter-signing-key.pem",
            errors=errors,
            fields=fields or {},
        )
