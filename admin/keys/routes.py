"""Serves the routes of API keys: listing, creating, editing, rotating and revoking them.

A key's plaintext is shown once, in answer to the form that created it; it is stored nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin import snippets
from admin.keys import page
from admin.keys.page import KeysPage
from admin.projects.page import limit_rows
from admin.services import ConsoleServices
from admin.web import form_errors
from admin.web.console import Console
from admin.web.principals import TenantUser
from admin.web.request_info import after_of, origin_of
from admin.web.sorting import sort_of
from tenants.context import KeyKind
from tenants.key_service import CreatedKey
from tenants.limits.kinds import Limit

_KEY_ID = re.compile(r"key_[0-9a-zA-Z]{1,40}")


class KeyRoutes:
    """Below `/keys`. Paths with a word where others have an id come first."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._keys = services.account.keys
        self._limits = services.account.limits
        self._pages = KeysPage(services.account.keys, services.account.projects)
        self._base = services.adapters.catalogue.bases.default
        self._scopes = services.scopes
        self._error_mapping = services.error_mapping
        self._expected_errors = form_errors.expected_errors(services.error_mapping)

    def routes(self) -> list[Route]:
        view, action = self._console.view, self._console.action
        return [
            Route("/keys", view(self.show_list, "keys.read"), methods=["GET"]),
            Route("/keys", action(self.create, "keys.write", members_alone=True), methods=["POST"]),
            Route("/keys/new", view(self.show_form, "keys.write"), methods=["GET"]),
            Route("/keys/{key}", view(self.show, "keys.read"), methods=["GET"]),
            Route("/keys/{key}", action(self.change, "keys.write", members_alone=True), methods=["POST"]),
            Route("/keys/{key}/edit", view(self.show_edit_form, "keys.write"), methods=["GET"]),
            Route(
                "/keys/{key}/rotate",
                action(self.rotate, "keys.write", members_alone=True),
                methods=["POST"],
            ),
            Route("/keys/{key}/revoke", action(self.revoke, "keys.write"), methods=["POST"]),
        ]

    async def show_list(self, request: Request, principal: TenantUser) -> Response:
        after = after_of(request, _KEY_ID)
        every = request.query_params.get("show") == "all"
        sort = sort_of(request, page.COLUMNS)
        keys = await self._pages.index(principal.tenant_id, after, with_revoked=every, sort=sort)
        return self._page(request, "keys.html", principal, page=keys, is_first=after is None, every=every)

    async def show(self, request: Request, principal: TenantUser) -> Response:
        key = await self._pages.one(principal.tenant_id, request.path_params["key"])
        limits = await self._limits.list(principal.tenant_id) if principal.may("limits.read") else None
        return self._one(request, principal, key, limits)

    async def show_form(self, request: Request, principal: TenantUser) -> Response:
        kind = request.query_params.get("kind", "inference")
        if kind not in self._scopes:
            raise HTTPException(404, "This key type doesn't exist.")
        fields = {"all_scopes": "yes", "project": request.query_params.get("project", "")}
        return await self._form(request, principal, kind, fields, form_errors.NO_ERRORS)  # type: ignore[arg-type]

    async def create(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        kind: KeyKind = "admin" if form.get("kind") == "admin" else "inference"
        inference = kind == "inference"
        try:
            made = await self._keys.create(
                principal.tenant_id,
                form.get("name", ""),
                principal.acting(request),
                kind=kind,
                project_id=form.get("project") or None if inference else None,
                user_id=principal.account.user_id if inference and form.get("owner") == "me" else None,
                restrictions=page.read_restrictions(form, self._scopes[kind]),
            )
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, page.FIELDS, self._error_mapping)
            return await self._form(request, principal, kind, form, errors, status)
        return self._made(request, principal, made, None)

    async def rotate(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        key_id = request.path_params["key"]
        try:
            grace = page.read_grace(form)
        except form_errors.FieldError as error:
            raise HTTPException(400, error.message) from None
        made = await self._keys.rotate(principal.tenant_id, key_id, principal.acting(request), grace=grace)
        return self._made(request, principal, made, await self._pages.one(principal.tenant_id, key_id))

    async def revoke(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        key = await self._pages.one(principal.tenant_id, request.path_params["key"])
        await self._keys.revoke(principal.tenant_id, key.id, principal.acting(request))
        message = f"{key.name} was revoked."
        return await self._console.redirect_with_message(request, principal, "/keys", message)

    async def show_edit_form(self, request: Request, principal: TenantUser) -> Response:
        key = await self._pages.one(principal.tenant_id, request.path_params["key"])
        return self._edit_form(request, principal, key, page.fields_of(key), form_errors.NO_ERRORS)

    async def change(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        """Changes only the fields that the form changed: another member may have changed others meanwhile."""
        key_id = request.path_params["key"]
        key = await self._pages.one(principal.tenant_id, key_id)
        try:
            changes = page.read_changes(form, key, self._scopes[key.kind])
            await self._keys.update(principal.tenant_id, key_id, changes, principal.acting(request))
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, page.FIELDS, self._error_mapping)
            return self._edit_form(request, principal, key, form, errors, status)
        message = "API key updated. Changes take effect within a second."
        return await self._console.redirect_with_message(request, principal, f"/keys/{key_id}", message)

    def _edit_form(
        self,
        request: Request,
        principal: TenantUser,
        key: page.KeyRow,
        fields: Mapping[str, str],
        errors: form_errors.FormErrors,
        status: int = 200,
    ) -> Response:
        bounds = principal.acting(request).scopes if key.kind == "admin" else frozenset()
        held = self._scopes[key.kind] & bounds if bounds else self._scopes[key.kind]
        return self._page(
            request,
            "key_edit.html",
            principal,
            status,
            key=key,
            kind=key.kind,
            fields=fields,
            errors=errors,
            choices=page.scope_choices(held | frozenset(key.scopes)),
            may_give_all=not (bounds and key.scopes),
            scope_field=page.SCOPE_FIELD,
            base=self._base,
        )

    def _one(
        self, request: Request, principal: TenantUser, key: page.KeyRow, limits: list[Limit] | None
    ) -> Response:
        scopes = [(scope, page.scope_words(scope)) for scope in key.scopes]
        own = None if limits is None else limit_rows(limits, "key", key.id)
        return self._page(
            request, "key.html", principal, key=key, scopes=scopes, graces=page.GRACES, limits=own
        )

    async def _form(
        self,
        request: Request,
        principal: TenantUser,
        kind: KeyKind,
        fields: Mapping[str, str],
        errors: form_errors.FormErrors,
        status: int = 200,
    ) -> Response:
        # A member cannot grant permissions that they do not have.
        bounds = principal.acting(request).scopes if kind == "admin" else frozenset()
        held = self._scopes[kind] & bounds if bounds else self._scopes[kind]
        return self._page(
            request,
            "key_new.html",
            principal,
            status,
            kind=kind,
            fields=fields,
            errors=errors,
            projects=[(one.id, one.name) for one in await self._pages.projects(principal.tenant_id)],
            choices=page.scope_choices(held),
            may_give_all=not bounds,
            scope_field=page.SCOPE_FIELD,
            base=self._base,
        )

    def _made(
        self, request: Request, principal: TenantUser, made: CreatedKey, old: page.KeyRow | None
    ) -> Response:
        model = self._base
        texts = snippets.ask(origin_of(request), model, made.plaintext) if made.kind == "inference" else []
        return self._page(request, "key_made.html", principal, 201, made=made, old=old, snippets=texts)

    def _page(
        self, request: Request, template: str, principal: TenantUser, status: int = 200, **context: Any
    ) -> Response:
        return self._console.render(request, template, status, principal=principal, section="keys", **context)
