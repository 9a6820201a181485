"""Serves workload identity: lists, adds and deletes trusted issuers, and the rules for their tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.keys.page import SCOPE_FIELD, scope_choices
from admin.navigation import SETTINGS
from admin.services import ConsoleServices
from admin.web import form_errors
from admin.web.console import Console
from admin.web.principals import TenantUser
from admin.web.request_info import after_of
from admin.workload_identity.fields import (
    ISSUER_FIELDS,
    MAX_FORM,
    RULE_FIELDS,
    matcher_lines,
    read_issuer,
    read_rule,
)
from tenants.roles import Right
from tenants.workload_identity.service import MAX_RULES

PATH = f"{SETTINGS.path}/workload-identity"
PAGE = 50
MAX_ACCOUNTS = 500
_ID = re.compile(r"wip_[0-9a-zA-Z]{1,40}")
_READ: Right = "keys.read"
_WRITE: Right = "keys.write"
_NEW = {"token_minutes": "60", "single_use": "on"}


class WorkloadIdentityRoutes:
    """Below `/settings/workload-identity`. The path with a word where others have an id comes first."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._identities = services.account.workload_identities
        self._accounts = services.account.service_accounts
        self._scopes = services.scopes["inference"]
        self._check_url = services.check_issuer_url
        self._error_mapping = services.error_mapping
        self._expected_errors = form_errors.expected_errors(services.error_mapping)

    def routes(self) -> list[Route]:
        view, action = self._console.view, self._console.action
        one, rule = f"{PATH}/{{issuer}}", f"{PATH}/{{issuer}}/rules/{{rule}}"
        add = action(self.add_issuer, _WRITE, members_alone=True, max_bytes=MAX_FORM)
        return [
            Route(PATH, view(self.show_list, _READ), methods=["GET"]),
            Route(PATH, add, methods=["POST"]),
            Route(f"{PATH}/new", view(self.show_form, _WRITE), methods=["GET"]),
            Route(one, view(self.show, _READ), methods=["GET"]),
            Route(f"{one}/state", action(self.set_state, _WRITE, members_alone=True), methods=["POST"]),
            Route(f"{one}/delete", action(self.delete, _WRITE), methods=["POST"]),
            Route(f"{one}/rules", action(self.add_rule, _WRITE, members_alone=True), methods=["POST"]),
            Route(f"{rule}/delete", action(self.delete_rule, _WRITE), methods=["POST"]),
        ]

    # Issuers ------------------------------------------------------------------------------------------------

    async def show_list(self, request: Request, principal: TenantUser) -> Response:
        after = after_of(request, _ID)
        found = await self._identities.providers(principal.tenant_id, after=after, limit=PAGE + 1)
        return self._render(
            request,
            "workload_identity.html",
            principal,
            rows=found[:PAGE],
            next_after=found[PAGE - 1].id if len(found) > PAGE else None,
            is_first=after is None,
        )

    async def show_form(self, request: Request, principal: TenantUser) -> Response:
        return self._form(request, principal, _NEW, form_errors.NO_ERRORS)

    async def add_issuer(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        try:
            columns = read_issuer(form, self._check_url)
            made = await self._identities.create_provider(
                principal.tenant_id, columns, principal.acting(request)
            )
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, ISSUER_FIELDS, self._error_mapping)
            return self._form(request, principal, form, errors, status)
        message = f"{made.name} added. Add a rule: until then, none of its tokens is accepted."
        return await self._done(request, principal, f"{PATH}/{made.id}", message)

    async def show(self, request: Request, principal: TenantUser) -> Response:
        return await self._one(request, principal, {}, form_errors.NO_ERRORS)

    async def set_state(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        wanted = {"yes": True, "no": False}.get(form.get("enabled", ""))
        if wanted is None:
            raise HTTPException(400, "Choose whether the issuer's tokens are accepted.")
        issuer_id = request.path_params["issuer"]
        await self._identities.update_provider(
            principal.tenant_id, issuer_id, {"is_enabled": wanted}, principal.acting(request)
        )
        message = "Tokens are accepted again." if wanted else "Issuer disabled and its keys revoked."
        return await self._done(request, principal, f"{PATH}/{issuer_id}", message)

    async def delete(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        issuer_id = request.path_params["issuer"]
        await self._identities.delete_provider(principal.tenant_id, issuer_id, principal.acting(request))
        return await self._done(request, principal, PATH, "Issuer deleted and its keys revoked.")

    # Rules --------------------------------------------------------------------------------------------------

    async def add_rule(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        issuer_id = request.path_params["issuer"]
        project_id, _, account_id = form.get("account", "").partition("/")
        try:
            columns = read_rule(form, frozenset(self._scopes))
            await self._identities.create_rule(
                principal.tenant_id, issuer_id, (project_id, account_id), columns, principal.acting(request)
            )
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, RULE_FIELDS, self._error_mapping)
            return await self._one(request, principal, form, errors, status)
        return await self._done(request, principal, f"{PATH}/{issuer_id}", "Rule added.")

    async def delete_rule(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        issuer_id, rule_id = request.path_params["issuer"], request.path_params["rule"]
        await self._identities.delete_rule(principal.tenant_id, issuer_id, rule_id, principal.acting(request))
        return await self._done(
            request, principal, f"{PATH}/{issuer_id}", "Rule deleted and its keys revoked."
        )

    # --------------------------------------------------------------------------------------------------------

    async def _one(
        self,
        request: Request,
        principal: TenantUser,
        fields: Mapping[str, str],
        errors: form_errors.FormErrors,
        status: int = 200,
    ) -> Response:
        tenant_id, issuer_id = principal.tenant_id, request.path_params["issuer"]
        issuer = await self._identities.provider(tenant_id, issuer_id)
        rules = await self._identities.rules(tenant_id, issuer_id, limit=MAX_RULES)
        accounts = await self._accounts.of_every_project(tenant_id, limit=MAX_ACCOUNTS)
        names = {one.id: (project, one.name) for project, one in accounts}
        return self._render(
            request,
            "workload_issuer.html",
            principal,
            status,
            issuer=issuer,
            rules=[(one, names.get(one.service_account_id), matcher_lines(one.matchers)) for one in rules],
            accounts=[(f"{one.project_id}/{one.id}", f"{project}: {one.name}") for project, one in accounts],
            choices=scope_choices(self._scopes),
            scope_field=SCOPE_FIELD,
            fields=fields,
            errors=errors,
        )

    def _form(
        self,
        request: Request,
        principal: TenantUser,
        fields: Mapping[str, str],
        errors: form_errors.FormErrors,
        status: int = 200,
    ) -> Response:
        return self._render(
            request, "workload_issuer_new.html", principal, status, fields=fields, errors=errors
        )

    def _render(
        self, request: Request, template: str, principal: TenantUser, status: int = 200, **context: Any
    ) -> Response:
        return self._console.render(
            request, template, status, principal=principal, section=SETTINGS.id, **context
        )

    async def _done(self, request: Request, principal: TenantUser, path: str, message: str) -> Response:
        return await self._console.redirect_with_message(request, principal, path, message)
