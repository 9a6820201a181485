"""Serves provisioning by an identity provider: its SCIM tokens, its groups, and the role of each group.

A token is shown once, in answer to the form that created it. Only owners change anything here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.navigation import SETTINGS
from admin.services import ConsoleServices
from admin.web import authorization, form_errors
from admin.web.console import Console
from admin.web.principals import TenantUser
from admin.web.request_info import after_of, origin_of
from tenants.provisioning.profiles import GroupProfile
from tenants.roles import ROLES, Right

PATH = f"{SETTINGS.path}/provisioning"
PAGE = 50
_GROUP_ID = re.compile(r"group_[0-9a-z]{1,40}")
_NO_ROLE = "none"
_ROLES = [(_NO_ROLE, "No role"), *((role, role.capitalize()) for role in ROLES)]


class ProvisioningRoutes:
    """Below `/settings/provisioning`."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._tokens = services.account.scim_tokens
        self._groups = services.account.provisioned_groups
        self._url = services.sign_in.url
        self._error_mapping = services.error_mapping
        self._expected_errors = form_errors.expected_errors(services.error_mapping)

    def routes(self) -> list[Route]:
        view, action = self._console.view, self._console.action
        write: Right = "members.write"
        create = action(self.create_token, write, members_alone=True)
        return [
            Route(PATH, view(self.show, "members.read"), methods=["GET"]),
            Route(f"{PATH}/tokens", create, methods=["POST"]),
            Route(f"{PATH}/tokens/{{scim_token}}/revoke", action(self.revoke_token, write), methods=["POST"]),
            Route(f"{PATH}/groups", action(self.add_group, write), methods=["POST"]),
            Route(f"{PATH}/groups/{{group}}", action(self.set_role, write), methods=["POST"]),
            Route(f"{PATH}/groups/{{group}}/delete", action(self.delete_group, write), methods=["POST"]),
        ]

    async def show(self, request: Request, principal: TenantUser) -> Response:
        return await self._page(request, principal)

    async def create_token(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        authorization.require_owner(principal)
        try:
            made = await self._tokens.create(
                principal.tenant_id, form.get("name", ""), principal.acting(request)
            )
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, ("name",), self._error_mapping)
            return await self._page(request, principal, status, errors, form)
        return self._render(request, "scim_token_made.html", principal, 201, made=made)

    async def revoke_token(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        authorization.require_owner(principal)
        token_id = request.path_params["scim_token"]
        await self._tokens.revoke(principal.tenant_id, token_id, principal.acting(request))
        return await self._console.redirect_with_message(request, principal, PATH, "Token revoked.")

    async def add_group(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        """Adds a group for sign-ins to name, with its role."""
        authorization.require_owner(principal)
        wanted = _wanted_role(form)
        actor = principal.acting(request)
        try:
            group = await self._groups.create(
                principal.tenant_id, GroupProfile(form.get("group_name", "").strip()), actor, by_hand=True
            )
        except self._expected_errors as error:
            told = ValueError(str(error).replace("displayName", "group_name"))
            status, errors = form_errors.explain(told, ("group_name",), self._error_mapping)
            return await self._page(request, principal, status, errors, form)
        if wanted is not None:
            await self._groups.set_role(principal.tenant_id, group.id, wanted, actor)
        message = f"{group.profile.display_name} added."
        return await self._console.redirect_with_message(request, principal, PATH, message)

    async def delete_group(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        authorization.require_owner(principal)
        group_id = request.path_params["group"]
        await self._groups.delete(principal.tenant_id, group_id, principal.acting(request), by_hand=True)
        return await self._console.redirect_with_message(request, principal, PATH, "Group deleted.")

    async def set_role(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        authorization.require_owner(principal)
        group = await self._groups.set_role(
            principal.tenant_id,
            request.path_params["group"],
            _wanted_role(form),
            principal.acting(request),
        )
        name = group.profile.display_name
        message = (
            f"{name} gives no role." if group.role is None else f"Members of {name} are now {group.role}s."
        )
        return await self._console.redirect_with_message(request, principal, PATH, message)

    async def _page(
        self,
        request: Request,
        principal: TenantUser,
        status: int = 200,
        errors: form_errors.FormErrors = form_errors.NO_ERRORS,
        fields: dict[str, str] | None = None,
    ) -> Response:
        after = after_of(request, _GROUP_ID)
        groups = await self._groups.page(principal.tenant_id, after=after, limit=PAGE + 1)
        return self._render(
            request,
            "provisioning.html",
            principal,
            status,
            tokens=await self._tokens.list(principal.tenant_id),
            groups=groups[:PAGE],
            next_after=groups[PAGE - 1].id if len(groups) > PAGE else None,
            is_first=after is None,
            roles=_ROLES,
            errors=errors,
            fields=fields or {},
        )

    def _render(
        self, request: Request, template: str, principal: TenantUser, status: int, **context: Any
    ) -> Response:
        base_url = f"{self._url or origin_of(request)}/scim/v2"
        return self._console.render(
            request, template, status, principal=principal, section=SETTINGS.id, base_url=base_url, **context
        )


def _wanted_role(form: Mapping[str, str]) -> str | None:
    """Returns the chosen role; None for no role."""
    wanted = form.get("role", "")
    if wanted not in dict(_ROLES):
        raise HTTPException(400, "Choose one of the roles.")
    return None if wanted == _NO_ROLE else wanted
