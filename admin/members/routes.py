"""Serves the routes of members and invitations: roles, suspension, removal, password and two-factor resets.

Invitation and reset links are sent by email. Where email is not configured, the admin who created the link
is shown it once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin import formatting
from admin.members import page
from admin.members.page import MembersPage
from admin.services import ConsoleServices
from admin.web import form_errors
from admin.web.console import Console
from admin.web.principals import TenantUser
from admin.web.request_info import after_of, link_with_token
from billing.notifications.errors import MailNotSent
from tenants.errors import NameTaken
from tenants.members.invites import CreatedInvite
from tenants.roles import ROLES, Right, Role

log = structlog.get_logger(__name__)
_USER_ID = re.compile(r"usr_[0-9a-zA-Z]{1,40}")


class MemberRoutes:
    """Below `/members`. Paths with a word where others have an id come first."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        account = services.account
        self._members, self._invites = account.members, account.invites
        self._factors, self._credentials = account.second_factors, account.credentials
        self._pages = MembersPage(account.members, account.invites, account.projects, account.second_factors)
        self._mail, self._url = services.sign_in.mail, services.sign_in.url
        self._error_mapping = services.error_mapping
        self._expected_errors = form_errors.expected_errors(services.error_mapping)

    def routes(self) -> list[Route]:
        view, action = self._console.view, self._console.action
        write: Right = "members.write"
        return [
            Route("/members", view(self.show, "members.read"), methods=["GET"]),
            Route("/members/invite", view(self.show_form, write), methods=["GET"]),
            Route("/members/invite", action(self.invite, write, members_alone=True), methods=["POST"]),
            Route(
                "/members/second-factor", action(self.require, write, members_alone=True), methods=["POST"]
            ),
            Route("/members/invites/{invite}/withdraw", action(self.withdraw, write), methods=["POST"]),
            Route("/members/{user}", view(self.show_one, write), methods=["GET"]),
            Route("/members/{user}/role", action(self.change_role, write), methods=["POST"]),
            Route("/members/{user}/disable", action(self.disable, write), methods=["POST"]),
            Route("/members/{user}/enable", action(self.enable, write), methods=["POST"]),
            Route("/members/{user}/remove", action(self.remove, write), methods=["POST"]),
            Route(
                "/members/{user}/password", action(self.reset, write, members_alone=True), methods=["POST"]
            ),
            Route(
                "/members/{user}/second-factor",
                action(self.take_factor, write, members_alone=True),
                methods=["POST"],
            ),
        ]

    async def show(self, request: Request, principal: TenantUser) -> Response:
        after = after_of(request, _USER_ID)
        shown = await self._pages.gather(principal.tenant_id, after)
        return self._page(
            request,
            "members.html",
            principal,
            page=shown,
            is_first=after is None,
        )

    async def show_one(self, request: Request, principal: TenantUser) -> Response:
        user = await self._members.get(principal.tenant_id, request.path_params["user"])
        has_factor = user.id in await self._factors.users_with_factor(principal.tenant_id, [user.id])
        return self._page(
            request,
            "member.html",
            principal,
            member=user,
            words=page.ROLE_WORDS,
            has_factor=has_factor,
            mails=self._mail is not None,
        )

    async def show_form(self, request: Request, principal: TenantUser) -> Response:
        projects = await self._pages.projects(principal.tenant_id)
        ticked = {f"{page.PROJECT_FIELD}{id_}": "on" for id_, _, is_default in projects if is_default}
        return await self._form(request, principal, {"role": "developer", **ticked}, form_errors.NO_ERRORS)

    async def invite(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        try:
            made = await self._invites.create(
                principal.tenant_id,
                form.get("email", "").strip(),
                form.get("role", ""),  # type: ignore[arg-type]
                principal.acting(request),
                projects=page.read_places(form),
            )
        except NameTaken:
            errors = form_errors.FormErrors(email="A member with this email already exists.")
            return await self._form(request, principal, form, errors, 409)
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, page.FIELDS, self._error_mapping)
            return await self._form(request, principal, form, errors, status)
        if await self._mailed(principal, made):
            said = f"Invitation sent to {made.invite.email}."
            return await self._console.redirect_with_message(request, principal, "/members", said)
        link = link_with_token(request, self._url, "/join", made.token)
        failed = self._mail is not None
        return self._page(
            request, "member_invited.html", principal, 201, invite=made.invite, link=link, failed=failed
        )

    async def _mailed(self, principal: TenantUser, made: CreatedInvite) -> bool:
        if self._mail is None:
            return False
        invite = made.invite
        try:
            await self._mail.invite(
                invite.email,
                made.token,
                organisation=principal.account.tenant_name,
                role=invite.role,
                inviter=principal.account.name or principal.account.email,
                until=formatting.moment(invite.expires_at),
            )
        except MailNotSent as error:
            log.warning("an invitation was not mailed", invite=invite.id, reason=error.reason)
            return False
        return True

    async def reset(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        user_id = request.path_params["user"]
        made = await self._credentials.create_reset(principal.tenant_id, user_id, principal.acting(request))
        failed = False
        if self._mail is not None:
            try:
                await self._mail.reset(made.email, made.token, until=formatting.moment(made.expires_at))
                said = f"Password reset link sent to {made.email}."
                return await self._console.redirect_with_message(
                    request, principal, f"/members/{user_id}", said
                )
            except MailNotSent as error:
                log.warning("a reset was not mailed", user=user_id, reason=error.reason)
                failed = True
        link = link_with_token(request, self._url, "/reset", made.token)
        return self._page(
            request, "member_reset.html", principal, 201, made=made, link=link, user_id=user_id, failed=failed
        )

    async def take_factor(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        user = await self._members.get(principal.tenant_id, request.path_params["user"])
        await self._factors.remove_for_member(principal.tenant_id, user.id, principal.acting(request))
        said = f"Two-factor authentication was reset for {user.email}."
        return await self._console.redirect_with_message(request, principal, f"/members/{user.id}", said)

    async def require(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        required = form.get("required") == "yes"
        await self._factors.require(principal.account, required, principal.acting(request))
        said = "Two-factor authentication is now required for all members."
        if not required:
            said = "Two-factor authentication is now optional."
        return await self._console.redirect_with_message(request, principal, "/members", said)

    async def withdraw(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        invite = await self._invites.get(principal.tenant_id, request.path_params["invite"])
        await self._invites.delete(principal.tenant_id, invite.id, principal.acting(request))
        said = f"The invitation for {invite.email} was revoked."
        return await self._console.redirect_with_message(request, principal, "/members", said)

    async def change_role(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        role = form.get("role", "")
        if role not in ROLES:
            raise HTTPException(400, f"Choose one of these roles: {', '.join(ROLES)}.")
        chosen: Role = role  # type: ignore[assignment]
        user = await self._members.update(
            principal.tenant_id, request.path_params["user"], principal.acting(request), role=chosen
        )
        # A user who has just demoted themselves can still view the members, as every role can.
        return await self._console.redirect_with_message(
            request, principal, "/members", f"{user.email} is now {role}."
        )

    async def disable(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        user = await self._members.disable(
            principal.tenant_id, request.path_params["user"], principal.acting(request)
        )
        said = f"{user.email} was suspended."
        return await self._console.redirect_with_message(request, principal, f"/members/{user.id}", said)

    async def enable(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        user = await self._members.enable(
            principal.tenant_id, request.path_params["user"], principal.acting(request)
        )
        said = f"{user.email} was reinstated."
        return await self._console.redirect_with_message(request, principal, f"/members/{user.id}", said)

    async def remove(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        user = await self._members.get(principal.tenant_id, request.path_params["user"])
        await self._members.remove(principal.tenant_id, user.id, principal.acting(request))
        said = f"{user.email} was removed and their keys revoked."
        return await self._console.redirect_with_message(request, principal, "/members", said)

    async def _form(
        self,
        request: Request,
        principal: TenantUser,
        fields: Mapping[str, str],
        errors: form_errors.FormErrors,
        status: int = 200,
    ) -> Response:
        return self._page(
            request,
            "member_invite.html",
            principal,
            status,
            fields=fields,
            errors=errors,
            roles=page.ROLE_CHOICES,
            role_words=page.ROLE_WORDS,
            projects=await self._pages.projects(principal.tenant_id),
            project_field=page.PROJECT_FIELD,
            mails=self._mail is not None,
        )

    def _page(
        self, request: Request, template: str, principal: TenantUser, status: int = 200, **context: Any
    ) -> Response:
        return self._console.render(
            request, template, status, principal=principal, section="members", **context
        )
