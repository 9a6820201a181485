"""Projects over HTTP: made, renamed, archived, and who is in them.

Owns the paths. What a project is, and what ends with it, is `tenants`'.
"""

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
from admin.web.console import Frame, Visitor
from admin.web.request_info import after_of
from tenants.errors import NameTaken
from tenants.roles import ProjectRole, checked_project_role

_PROJECT_ID = re.compile(r"proj_[0-9a-zA-Z]{1,40}")
_TAKEN = "A project that is not archived has this name already."


class ProjectRoutes:
    """Below `/projects`. Paths with a word where others have an id come first."""

    def __init__(self, frame: Frame, services: ConsoleServices) -> None:
        self._frame = frame
        account = services.account
        self._projects, self._members = account.projects, account.members
        self._pages = ProjectsPage(
            account.projects,
            account.members,
            account.keys,
            account.limits,
            ServiceAccountsPage(account.projects, account.service_accounts, account.keys),
        )
        self._explanations = services.explanations
        self._refusals = form_errors.refusals(services.explanations)

    def routes(self) -> list[Route]:
        serving, changing = self._frame.serving, self._frame.changing
        one, members = "/projects/{project}", "/projects/{project}/members"
        return [
            Route("/projects", serving(self.show_list, "projects.read"), methods=["GET"]),
            Route("/projects", changing(self.create, "projects.write"), methods=["POST"]),
            Route("/projects/new", serving(self.show_form, "projects.write"), methods=["GET"]),
            Route(one, serving(self.show, "projects.read"), methods=["GET"]),
            Route(f"{one}/name", changing(self.rename, "projects.write"), methods=["POST"]),
            Route(f"{one}/archive", changing(self.archive, "projects.write"), methods=["POST"]),
            Route(members, changing(self.add_member, "members.write"), methods=["POST"]),
            Route(f"{members}/{{user}}/role", changing(self.change_role, "members.write"), methods=["POST"]),
            Route(f"{members}/{{user}}/remove", changing(self.remove, "members.write"), methods=["POST"]),
        ]

    async def show_list(self, request: Request, visitor: Visitor) -> Response:
        after = after_of(request, _PROJECT_ID)
        every = request.query_params.get("show") == "all"
        shown = await self._pages.shown(visitor.tenant_id, after, with_archived=every)
        return self._page(request, "projects.html", visitor, page=shown, is_first=after is None, every=every)

    async def show_form(self, request: Request, visitor: Visitor) -> Response:
        return self._page(request, "project_new.html", visitor, fields={}, problems=form_errors.NONE)

    async def create(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        try:
            made = await self._projects.create(
                visitor.tenant_id, form.get("name", ""), visitor.acting(request)
            )
        except self._refusals as error:
            status, beside = self._explained(error)
            return self._page(request, "project_new.html", visitor, status, fields=form, problems=beside)
        return await self._frame.done(request, visitor, f"/projects/{made.id}", f"{made.name} is made.")

    async def show(self, request: Request, visitor: Visitor) -> Response:
        return await self._one(request, visitor, {}, form_errors.NONE)

    async def rename(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        project_id = request.path_params["project"]
        try:
            made = await self._projects.rename(
                visitor.tenant_id, project_id, form.get("name", ""), visitor.acting(request)
            )
        except self._refusals as error:
            status, beside = self._explained(error)
            return await self._one(request, visitor, form, beside, status)
        said = f"The project is called {made.name} now."
        return await self._frame.done(request, visitor, f"/projects/{project_id}", said)

    async def archive(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        project_id = request.path_params["project"]
        done = await self._projects.archive(visitor.tenant_id, project_id, visitor.acting(request))
        said = f"{done.name} is archived, and its keys are revoked."
        return await self._frame.done(request, visitor, "/projects", said)

    async def add_member(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        project_id = request.path_params["project"]
        role = checked_role(form)
        _, user = await self._members.add_to_project(
            visitor.tenant_id, project_id, form.get("user", ""), role, visitor.acting(request)
        )
        said = f"{user.email} is in it now."
        return await self._frame.done(request, visitor, f"/projects/{project_id}", said)

    async def change_role(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        project_id, user_id = request.path_params["project"], request.path_params["user"]
        role = checked_role(form)
        _, user = await self._members.update_in_project(
            visitor.tenant_id, project_id, user_id, role, visitor.acting(request)
        )
        said = f"{user.email} is its {role} now."
        return await self._frame.done(request, visitor, f"/projects/{project_id}", said)

    async def remove(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        project_id, user_id = request.path_params["project"], request.path_params["user"]
        _, user = await self._members.project_member(visitor.tenant_id, project_id, user_id)
        await self._members.remove_from_project(
            visitor.tenant_id, project_id, user_id, visitor.acting(request)
        )
        said = f"{user.email} is out of it, and their keys of it are revoked."
        return await self._frame.done(request, visitor, f"/projects/{project_id}", said)

    def _explained(self, error: Exception) -> tuple[int, form_errors.Problems]:
        if isinstance(error, NameTaken):
            return 409, form_errors.Problems(name=_TAKEN)
        return form_errors.explain(error, page.FIELDS, self._explanations)

    async def _one(
        self,
        request: Request,
        visitor: Visitor,
        fields: Mapping[str, str],
        beside: form_errors.Problems,
        status: int = 200,
    ) -> Response:
        shown = await self._pages.one(visitor.tenant_id, request.path_params["project"], visitor.may)
        return self._page(
            request,
            "project.html",
            visitor,
            status,
            project=shown,
            name=fields.get("name", shown.name),
            problems=beside,
            roles=page.ROLES,
        )

    def _page(
        self, request: Request, template: str, visitor: Visitor, status: int = 200, **context: Any
    ) -> Response:
        return self._frame.page(request, template, status, visitor=visitor, section="projects", **context)


def checked_role(form: Mapping[str, str]) -> ProjectRole:
    """Raises `HTTPException` 400."""
    try:
        return checked_project_role(form.get("role", ""))
    except ValueError:
        raise HTTPException(400, "Somebody is a member or an owner of a project.") from None
