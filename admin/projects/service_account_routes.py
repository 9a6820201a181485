"""Serves the routes of service accounts: creating, renaming and deleting them, and creating their keys.

A key's plaintext is shown once, in answer to the form that created it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin import snippets
from admin.keys.page import read_end
from admin.projects import service_accounts_page as page
from admin.projects.service_accounts_page import ServiceAccountsPage
from admin.services import ConsoleServices
from admin.web import authorization, form_errors
from admin.web.console import Console
from admin.web.principals import TenantUser
from admin.web.request_info import after_of, origin_of
from tenants.key_service import KeyRestrictions
from tenants.models import ServiceAccount

_ACCOUNT_ID = re.compile(r"svc_acct_[0-9a-zA-Z]{1,40}")
_EVERY = "/projects/{project}/service-accounts"


class ServiceAccountRoutes:
    """Below a project. The path with a word where others have an id comes first."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        account = services.account
        self._accounts, self._keys = account.service_accounts, account.keys
        self._pages = ServiceAccountsPage(account.projects, account.service_accounts, account.keys)
        self._base = services.adapters.catalogue.bases.default
        self._error_mapping = services.error_mapping
        self._expected_errors = form_errors.expected_errors(services.error_mapping)

    def routes(self) -> list[Route]:
        view, action = self._console.view, self._console.action
        one = f"{_EVERY}/{{account}}"
        return [
            Route(_EVERY, view(self.show_list, "projects.read"), methods=["GET"]),
            Route(_EVERY, action(self.create, "projects.write", members_alone=True), methods=["POST"]),
            Route(f"{_EVERY}/new", view(self.show_form, "projects.write"), methods=["GET"]),
            Route(one, view(self.show, "projects.read"), methods=["GET"]),
            Route(f"{one}/name", action(self.rename, "projects.write"), methods=["POST"]),
            Route(f"{one}/keys", action(self.add_key, "keys.write", members_alone=True), methods=["POST"]),
            Route(f"{one}/delete", action(self.delete, "projects.write"), methods=["POST"]),
        ]

    async def show_list(self, request: Request, principal: TenantUser) -> Response:
        after = after_of(request, _ACCOUNT_ID)
        project = await self._pages.project(principal.tenant_id, request.path_params["project"])
        accounts = await self._pages.index(principal.tenant_id, project.id, after)
        return self._page(
            request,
            "service_accounts.html",
            principal,
            project=project,
            page=accounts,
            is_first=after is None,
        )

    async def show_form(self, request: Request, principal: TenantUser) -> Response:
        return await self._form(request, principal, {}, form_errors.NO_ERRORS)

    async def create(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        """The account and its first key. Whatever is wrong with the form is seen before either is made."""
        authorization.require_right(principal, "keys.write")
        project_id = request.path_params["project"]
        try:
            restrictions = KeyRestrictions(expires_at=read_end(form.get("expires_at", "")))
            account = await self._accounts.create(
                principal.tenant_id, project_id, form.get("name", ""), principal.acting(request)
            )
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, page.FIELDS, self._error_mapping)
            return await self._form(request, principal, form, errors, status)
        return await self._made(request, principal, account, page.FIRST_KEY, restrictions)

    async def show(self, request: Request, principal: TenantUser) -> Response:
        return await self._one(request, principal, {}, form_errors.NO_ERRORS)

    async def rename(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        project_id, account_id = self._named(request)
        try:
            account = await self._accounts.update(
                principal.tenant_id,
                project_id,
                account_id,
                principal.acting(request),
                name=form.get("name", ""),
            )
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, page.FIELDS, self._error_mapping)
            return await self._one(request, principal, form, errors, status)
        message = f"Service account renamed to {account.name}."
        return await self._console.redirect_with_message(request, principal, self._path(account), message)

    async def add_key(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        project_id, account_id = self._named(request)
        account = await self._accounts.get(principal.tenant_id, project_id, account_id)
        try:
            restrictions = KeyRestrictions(expires_at=read_end(form.get("expires_at", "")))
            return await self._made(request, principal, account, form.get("key_name", ""), restrictions)
        except self._expected_errors as error:
            status, errors = form_errors.explain(_of_key(error), page.FIELDS, self._error_mapping)
            return await self._one(request, principal, form, errors, status)

    async def delete(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        project_id, account_id = self._named(request)
        account = await self._accounts.get(principal.tenant_id, project_id, account_id)
        await self._accounts.delete(principal.tenant_id, project_id, account_id, principal.acting(request))
        message = f"{account.name} was deleted and its keys revoked."
        return await self._console.redirect_with_message(
            request, principal, f"/projects/{project_id}", message
        )

    async def _made(
        self,
        request: Request,
        principal: TenantUser,
        account: ServiceAccount,
        name: str,
        restrictions: KeyRestrictions,
    ) -> Response:
        made = await self._keys.create(
            principal.tenant_id,
            name,
            principal.acting(request),
            project_id=account.project_id,
            service_account_id=account.id,
            restrictions=restrictions,
        )
        texts = snippets.ask(origin_of(request), self._base, made.plaintext)
        return self._page(
            request,
            "service_account_key.html",
            principal,
            201,
            made=made,
            account=account,
            here=self._path(account),
            snippets=texts,
        )

    async def _form(
        self,
        request: Request,
        principal: TenantUser,
        fields: Mapping[str, str],
        errors: form_errors.FormErrors,
        status: int = 200,
    ) -> Response:
        authorization.require_right(principal, "keys.write")
        project = await self._pages.project(principal.tenant_id, request.path_params["project"])
        return self._page(
            request,
            "service_account_new.html",
            principal,
            status,
            project=project,
            fields=fields,
            errors=errors,
        )

    async def _one(
        self,
        request: Request,
        principal: TenantUser,
        fields: Mapping[str, str],
        errors: form_errors.FormErrors,
        status: int = 200,
    ) -> Response:
        project_id, account_id = self._named(request)
        with_keys = principal.may("keys.read")
        view = await self._pages.one(principal.tenant_id, project_id, account_id, with_keys=with_keys)
        return self._page(
            request,
            "service_account.html",
            principal,
            status,
            view=view,
            here=self._path(view.account),
            fields=fields,
            errors=errors,
        )

    @staticmethod
    def _named(request: Request) -> tuple[str, str]:
        return request.path_params["project"], request.path_params["account"]

    @staticmethod
    def _path(account: ServiceAccount) -> str:
        return f"/projects/{account.project_id}/service-accounts/{account.id}"

    def _page(
        self, request: Request, template: str, principal: TenantUser, status: int = 200, **context: Any
    ) -> Response:
        return self._console.render(
            request, template, status, principal=principal, section="projects", **context
        )


def _of_key(error: Exception) -> Exception:
    """The same of the form's field for the name of a key: on this page `name` is the account's."""
    message = str(error)
    if isinstance(error, ValueError) and message.startswith("name "):
        return ValueError(f"key_{message}")
    return error
