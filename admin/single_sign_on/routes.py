"""Serves single sign-on: the addresses that the identity provider needs, and what is needed of it.

Only owners change anything here: a provider that signs members in can sign owners in.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.navigation import SETTINGS
from admin.services import ConsoleServices
from admin.web import authorization, form_errors
from admin.web.console import Action, Console
from admin.web.forms import FormWithFiles
from admin.web.principals import TenantUser
from admin.web.request_info import console_url_of
from tenants.roles import Right
from tenants.saml.certificates import certificate_view
from tenants.saml.documents import MAX_BYTES
from tenants.saml.models import SamlConnection
from tenants.saml.service_provider import ServiceProvider

PATH = f"{SETTINGS.path}/single-sign-on"
FIELDS = (
    "metadata",
    "entity_id",
    "sso_url",
    "certificates",
    "email_attribute",
    "groups_attribute",
)
_CERTIFICATES = ("certificate", "next_certificate")
_MAX_FORM = 64 * 1024
_WRITE: Right = "members.write"


class SingleSignOnRoutes:
    """Below `/settings/single-sign-on`."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._connections = services.account.saml_connections
        self._url = services.sign_in.url
        self._error_mapping = services.error_mapping
        self._expected_errors = form_errors.expected_errors(services.error_mapping)

    def routes(self) -> list[Route]:
        view = self._console.view(self.show, "members.read")
        upload = self._console.file_action(self.read_metadata, _WRITE, max_files=1, max_field_bytes=MAX_BYTES)
        return [
            Route(PATH, view, methods=["GET"]),
            Route(PATH, self._action(self.set_fields), methods=["POST"]),
            Route(f"{PATH}/metadata", upload, methods=["POST"]),
            Route(f"{PATH}/options", self._action(self.set_options), methods=["POST"]),
            Route(f"{PATH}/state", self._action(self.set_state), methods=["POST"]),
            Route(f"{PATH}/delete", self._action(self.delete), methods=["POST"]),
        ]

    def _action(self, change: Action) -> Any:
        return self._console.action(change, _WRITE, members_alone=True, max_bytes=_MAX_FORM)

    async def show(self, request: Request, principal: TenantUser) -> Response:
        return await self._page(request, principal)

    async def read_metadata(self, request: Request, principal: TenantUser, form: FormWithFiles) -> Response:
        authorization.require_owner(principal)
        try:
            text = await _metadata(form)
            await self._set(request, principal, {"metadata": text})
        except self._expected_errors as error:
            return await self._with_error(request, principal, error, form.fields)
        return await self._done(request, principal, "Identity provider saved.")

    async def set_fields(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        authorization.require_owner(principal)
        certificates = [form[name] for name in _CERTIFICATES if form.get(name, "").strip()]
        try:
            await self._set(
                request,
                principal,
                {
                    "entity_id": form.get("entity_id", ""),
                    "sso_url": form.get("sso_url", "").strip(),
                    "certificates": certificates,
                },
            )
        except self._expected_errors as error:
            return await self._with_error(request, principal, error, form)
        return await self._done(request, principal, "Identity provider saved.")

    async def set_options(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        authorization.require_owner(principal)
        fields: dict[str, Any] = {
            name: form.get(name, "").strip() or None for name in ("email_attribute", "groups_attribute")
        }
        fields |= {name: name in form for name in ("allows_idp_initiated", "creates_members")}
        try:
            await self._set(request, principal, fields)
        except self._expected_errors as error:
            return await self._with_error(request, principal, error, form)
        return await self._done(request, principal, "Options saved.")

    async def set_state(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        authorization.require_owner(principal)
        wanted = {"yes": True, "no": False}.get(form.get("enabled", ""))
        if wanted is None:
            raise HTTPException(400, "Choose whether single sign-on is enabled.")
        await self._set(request, principal, {"is_enabled": wanted})
        return await self._done(
            request, principal, f"Single sign-on is {'enabled' if wanted else 'disabled'}."
        )

    async def delete(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        authorization.require_owner(principal)
        await self._connections.delete(principal.tenant_id, principal.acting(request))
        return await self._done(request, principal, "SAML configuration deleted.")

    async def _set(self, request: Request, principal: TenantUser, fields: Mapping[str, Any]) -> None:
        await self._connections.set(principal.tenant_id, fields, principal.acting(request))

    async def _done(self, request: Request, principal: TenantUser, message: str) -> Response:
        return await self._console.redirect_with_message(request, principal, PATH, message)

    async def _with_error(
        self, request: Request, principal: TenantUser, error: Exception, fields: Mapping[str, str]
    ) -> Response:
        status, errors = form_errors.explain(error, FIELDS, self._error_mapping)
        return await self._page(request, principal, status, errors, fields)

    async def _page(
        self,
        request: Request,
        principal: TenantUser,
        status: int = 200,
        errors: form_errors.FormErrors = form_errors.NO_ERRORS,
        fields: Mapping[str, str] | None = None,
    ) -> Response:
        connection = await self._connections.find(principal.tenant_id)
        stored = [] if connection is None else connection.certificates
        certificates = [certificate_view(one) for one in stored]
        now = datetime.now(UTC)
        return self._console.render(
            request,
            "single_sign_on.html",
            status,
            principal=principal,
            section=SETTINGS.id,
            provider=ServiceProvider(console_url_of(request, self._url), principal.tenant_id),
            connection=connection,
            certificates=[(one, one.expires_at <= now) for one in certificates],
            errors=errors,
            fields=_shown(connection) | dict(fields or {}),
        )


async def _metadata(form: FormWithFiles) -> str:
    """Returns the document that was chosen or pasted. Raises ValueError."""
    file: UploadFile | None = form.files.get("file")
    if file is None:
        if not form.fields.get("metadata", "").strip():
            raise ValueError("metadata: choose the file, or paste its text")
        return form.fields["metadata"]
    content = await file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"metadata: the file has more than {MAX_BYTES} bytes")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError("metadata: the file is not UTF-8 text") from error


def _shown(connection: SamlConnection | None) -> dict[str, str]:
    """Returns the fields of the forms."""
    if connection is None:
        return {}
    found = {
        "entity_id": connection.entity_id,
        "sso_url": connection.sso_url,
        "email_attribute": connection.email_attribute or "",
        "groups_attribute": connection.groups_attribute or "",
        **dict(zip(_CERTIFICATES, connection.certificates, strict=False)),
    }
    options = {
        name: "on" for name in ("allows_idp_initiated", "creates_members") if getattr(connection, name)
    }
    return found | options
