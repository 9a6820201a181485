"""Members and invitations over HTTP.

Owns the paths, and that an invitation's link is shown once, to whoever made it: no mail is sent. Who may
appoint and remove whom is `tenants`'.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin import problems
from admin.frame import Frame, Visitor, origin_of
from admin.pages import members as page
from admin.pages.members import MembersPage
from admin.services import ConsoleServices
from tenants.errors import NameTaken
from tenants.roles import ROLES, Right, Role

_USER_ID = re.compile(r"usr_[0-9a-zA-Z]{1,40}")


class MemberRoutes:
    """Below `/members`. Paths with a word where others have an id come first."""

    def __init__(self, frame: Frame, services: ConsoleServices) -> None:
        self._frame = frame
        account = services.account
        self._members, self._invites = account.members, account.invites
        self._pages = MembersPage(account.members, account.invites, account.projects)
        self._explanations = services.explanations
        self._refusals = problems.refusals(services.explanations)

    def routes(self) -> list[Route]:
        serving, changing = self._frame.serving, self._frame.changing
        write: Right = "members.write"
        return [
            Route("/members", serving(self.show, "members.read"), methods=["GET"]),
            Route("/members/invite", serving(self.show_form, write), methods=["GET"]),
            Route("/members/invite", changing(self.invite, write), methods=["POST"]),
            Route("/members/invites/{invite}/withdraw", changing(self.withdraw, write), methods=["POST"]),
            Route("/members/{user}", serving(self.show_one, write), methods=["GET"]),
            Route("/members/{user}/role", changing(self.change_role, write), methods=["POST"]),
            Route("/members/{user}/remove", changing(self.remove, write), methods=["POST"]),
        ]

    async def show(self, request: Request, visitor: Visitor) -> Response:
        after = request.query_params.get("after")
        if after is not None and _USER_ID.fullmatch(after) is None:
            raise HTTPException(404, "There is no such page of the list.")
        shown = await self._pages.gather(visitor.tenant_id, after)
        return self._page(
            request,
            "members.html",
            visitor,
            page=shown,
            is_first=after is None,
        )

    async def show_one(self, request: Request, visitor: Visitor) -> Response:
        user = await self._members.get(visitor.tenant_id, request.path_params["user"])
        return self._page(request, "member.html", visitor, member=user, words=page.ROLE_WORDS)

    async def show_form(self, request: Request, visitor: Visitor) -> Response:
        projects = await self._pages.projects(visitor.tenant_id)
        ticked = {f"{page.PROJECT_FIELD}{id_}": "on" for id_, _, is_default in projects if is_default}
        return await self._form(request, visitor, {"role": "developer", **ticked}, problems.NONE)

    async def invite(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        try:
            made = await self._invites.create(
                visitor.tenant_id,
                form.get("email", "").strip(),
                form.get("role", ""),  # type: ignore[arg-type]
                visitor.acting(request),
                projects=page.read_places(form),
            )
        except NameTaken:
            beside = problems.Problems(email="Whoever has this address is a member already.")
            return await self._form(request, visitor, form, beside, 409)
        except self._refusals as error:
            status, beside = problems.explain(error, page.FIELDS, self._explanations)
            return await self._form(request, visitor, form, beside, status)
        # Behind the hash: browsers send that to nobody, so that no log and no proxy has the token.
        link = f"{origin_of(request)}{request.scope.get('root_path', '')}/join#{made.token}"
        return self._page(request, "member_invited.html", visitor, 201, invite=made.invite, link=link)

    async def withdraw(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        invite = await self._invites.get(visitor.tenant_id, request.path_params["invite"])
        await self._invites.delete(visitor.tenant_id, invite.id, visitor.acting(request))
        said = f"The invitation of {invite.email} is withdrawn: its link is good for nothing any more."
        return await self._frame.done(request, visitor, "/members", said)

    async def change_role(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        role = form.get("role", "")
        if role not in ROLES:
            raise HTTPException(400, f"A role is one of {', '.join(ROLES)}.")
        chosen: Role = role  # type: ignore[assignment]
        user = await self._members.update(
            visitor.tenant_id, request.path_params["user"], visitor.acting(request), role=chosen
        )
        # Whoever has just made themselves less than an admin still sees the members, as every role does.
        return await self._frame.done(request, visitor, "/members", f"{user.email} is {role} now.")

    async def remove(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        user = await self._members.get(visitor.tenant_id, request.path_params["user"])
        await self._members.remove(visitor.tenant_id, user.id, visitor.acting(request))
        said = f"{user.email} is removed, and with them every key that was theirs."
        return await self._frame.done(request, visitor, "/members", said)

    async def _form(
        self,
        request: Request,
        visitor: Visitor,
        fields: Mapping[str, str],
        beside: problems.Problems,
        status: int = 200,
    ) -> Response:
        return self._page(
            request,
            "member_invite.html",
            visitor,
            status,
            fields=fields,
            problems=beside,
            roles=page.ROLE_CHOICES,
            projects=await self._pages.projects(visitor.tenant_id),
            project_field=page.PROJECT_FIELD,
        )

    def _page(
        self, request: Request, template: str, visitor: Visitor, status: int = 200, **context: Any
    ) -> Response:
        return self._frame.page(request, template, status, visitor=visitor, section="members", **context)
