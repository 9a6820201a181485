"""Serves the routes of projects: creating, renaming and archiving them, and managing their members."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.projects import page
from admin.projects.page import ProjectsPage
from admin.projects.service_accounts_page import ServiceAccountsPage
from admin.services import ConsoleServices
from admin.web import form_errors
from admin.web.console import Console
from admin.web.principals import TenantUser
from admin.web.request_info import after_of
from tenants.errors import NameTaken
from tenants.roles import ProjectRole, checked_project_role

_PROJECT_ID = re.compile(r"proj_[0-9a-zA-Z]{1,40}")
_TAKEN = "An active project with this name already exists."


class ProjectRoutes:
    """Below `/projects`. Paths with a word where others have an id come first."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        account = services.account
        self._projects, self._members = account.projects, account.members
        self._pages = ProjectsPage(
            account.projects,
            account.members,
            account.keys,
            account.limits,
            ServiceAccountsPage(account.projects, account.service_accounts, account.keys),
        )
        self._error_mapping = services.error_mapping
        self._expected_errors = form_errors.expected_errors(services.error_mapping)

    def routes(self) -> list[Route]:
        view, action = self._console.view, self._console.action
        one, members = "/projects/{project}", "/projects/{project}/members"
        return [
            Route("/projects", view(self.show_list, "projects.read"), methods=["GET"]),
            Route("/projects", action(self.create, "projects.write"), methods=["POST"]),
            Route("/projects/new", view(self.show_form, "projects.write"), methods=["GET"]),
            Route(one, view(self.show, "projects.read"), methods=["GET"]),
            Route(f"{one}/name", action(self.rename, "projects.write"), methods=["POST"]),
            Route(f"{one}/archive", action(self.archive, "projects.write"), methods=["POST"]),
            Route(members, action(self.add_member, "members.write"), methods=["POST"]),
            Route(f"{members}/{{user}}/role", action(self.change_role, "members.write"), methods=["POST"]),
            Route(f"{members}/{{user}}/remove", action(self.remove, "members.write"), methods=["POST"]),
        ]

    async def show_list(self, request: Request, principal: TenantUser) -> Response:
        after = after_of(request, _PROJECT_ID)
        every = request.query_params.get("show") == "all"
        projects = await self._pages.index(principal.tenant_id, after, with_archived=every)
        return self._page(
            request, "projects.html", principal, page=projects, is_first=after is None, every=every
        )

    async def show_form(self, request: Request, principal: TenantUser) -> Response:
        return self._page(request, "project_new.html", principal, fields={}, errors=form_errors.NO_ERRORS)

    async def create(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        try:
            made = await self._projects.create(
                principal.tenant_id, form.get("name", ""), principal.acting(request)
            )
        except self._expected_errors as error:
            status, errors = self._explained(error)
            return self._page(request, "project_new.html", principal, status, fields=form, errors=errors)
        return await self._console.redirect_with_message(
            request, principal, f"/projects/{made.id}", f"{made.name} was created."
        )

    async def show(self, request: Request, principal: TenantUser) -> Response:
        return await self._one(request, principal, {}, form_errors.NO_ERRORS)

    async def rename(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        project_id = request.path_params["project"]
        try:
            made = await self._projects.rename(
                principal.tenant_id, project_id, form.get("name", ""), principal.acting(request)
            )
        except self._expected_errors as error:
            status, errors = self._explained(error)
            return await self._one(request, principal, form, errors, status)
        message = f"Project renamed to {made.name}."
        return await self._console.redirect_with_message(
            request, principal, f"/projects/{project_id}", message
        )

    async def archive(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        project_id = request.path_params["project"]
        done = await self._projects.archive(principal.tenant_id, project_id, principal.acting(request))
        message = f"{done.name} was archived and its keys revoked."
        return await self._console.redirect_with_message(request, principal, "/projects", message)

    async def add_member(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        project_id = request.path_params["project"]
        role = checked_role(form)
        _, user = await self._members.add_to_project(
            principal.tenant_id, project_id, form.get("user", ""), role, principal.acting(request)
        )
        message = f"{user.email} was added to the project."
        return await self._console.redirect_with_message(
            request, principal, f"/projects/{project_id}", message
        )

    async def change_role(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        project_id, user_id = request.path_params["project"], request.path_params["user"]
        role = checked_role(form)
        _, user = await self._members.update_in_project(
            principal.tenant_id, project_id, user_id, role, principal.acting(request)
        )
        message = f"{user.email} is now a project {role}."
        return await self._console.redirect_with_message(
            request, principal, f"/projects/{project_id}", message
        )

    async def remove(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        project_id, user_id = request.path_params["project"], request.path_params["user"]
        _, user = await self._members.project_member(principal.tenant_id, project_id, user_id)
        await self._members.remove_from_project(
            principal.tenant_id, project_id, user_id, principal.acting(request)
        )
        message = f"{user.email} was removed from the project and their keys for it revoked."
        return await self._console.redirect_with_message(
            request, principal, f"/projects/{project_id}", message
        )

    def _explained(self, error: Exception) -> tuple[int, form_errors.FormErrors]:
        if isinstance(error, NameTaken):
            return 409, form_errors.FormErrors(name=_TAKEN)
        return form_errors.explain(error, page.FIELDS, self._error_mapping)

    async def _one(
        self,
        request: Request,
        principal: TenantUser,
        fields: Mapping[str, str],
        errors: form_errors.FormErrors,
        status: int = 200,
    ) -> Response:
        project = await self._pages.one(principal.tenant_id, request.path_params["project"], principal.may)
        return self._page(
            request,
            "project.html",
            principal,
            status,
            project=project,
            name=fields.get("name", project.name),
            errors=errors,
            roles=page.ROLES,
        )

    def _page(
        self, request: Request, template: str, principal: TenantUser, status: int = 200, **context: Any
    ) -> Response:
        return self._console.render(
            request, template, status, principal=principal, section="projects", **context
        )


def checked_role(form: Mapping[str, str]) -> ProjectRole:
    """Raises `HTTPException` 400."""
    try:
        return checked_project_role(form.get("role", ""))
    except ValueError:
        raise HTTPException(400, "Choose member or owner.") from None
