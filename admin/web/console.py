"""Builds the endpoints of every section: each one authenticates, authorizes, calls its handler, and maps
errors.

Checks run in this order: private connection, session, account, role, and for a change same origin and CSRF
token. `view` and `action` are for a tenant's users, `operator_view` and `operator_action` for operators.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from admin.services import ConsoleServices
from admin.web import authorization, security
from admin.web.authentication import Authenticator
from admin.web.authorization import operator_of
from admin.web.forms import (
    MAX_FIELD_BYTES,
    MAX_FIELDS,
    MAX_FORM_BYTES,
    FormWithFiles,
    read_files,
    read_form,
)
from admin.web.principals import Operator, Principal, TenantUser
from admin.web.rendering import OPERATOR_HOME, Renderer, is_by_script
from admin.web.request_info import path_to_return_to
from admin.web.sessions import OpenSession, SessionStore
from tenants.roles import Right

SECOND_FACTOR_PATH = "/account/second-factor"
CSRF_HEADER = "x-csrf-token"
SESSION_ENDED = "Your session has ended. Sign in again."

Endpoint = Callable[[Request], Awaitable[Response]]
View = Callable[[Request, TenantUser], Awaitable[Response]]
Action = Callable[[Request, TenantUser, dict[str, str]], Awaitable[Response]]
FileAction = Callable[[Request, TenantUser, FormWithFiles], Awaitable[Response]]
OperatorView = Callable[[Request, Operator], Awaitable[Response]]
OperatorAction = Callable[[Request, Operator, dict[str, str]], Awaitable[Response]]
AccountView = Callable[[Request, Principal], Awaitable[Response]]
AccountAction = Callable[[Request, Principal, dict[str, str]], Awaitable[Response]]


class Console(Renderer):
    """What the routes of a section build their endpoints and answers with."""

    def __init__(self, services: ConsoleServices) -> None:
        super().__init__(services.error_mapping)
        self.sessions = SessionStore(services.redis)
        self._authenticator = Authenticator(services, self.sessions)
        self.principal_of = self._authenticator.principal_of
        self._incidents = services.operation.incidents
        self._expected_errors: tuple[type[Exception], ...] = (HTTPException, *services.error_mapping.known)

    async def redirect_with_message(
        self, request: Request, principal: Principal, path: str, message: str
    ) -> Response:
        """Redirects to another page, which shows the message once."""
        await self.sessions.set_flash(principal.opened, message)
        return self.redirect(request, path)

    # For users of a tenant ------------------------------------------------------------------------------

    def view(self, serve: View, right: Right | None = None) -> Endpoint:
        """An endpoint for signed-in users whose role has `right`, if one is given. Operators are redirected
        to their own pages.
        """

        async def answer(request: Request, principal: Principal) -> Response:
            if isinstance(principal, Operator):
                return await self._redirect_operator(request, principal)
            if right is not None:
                authorization.require_right(principal, right)
            return await serve(request, principal)

        return self._authenticated(answer)

    def action(
        self,
        change: Action,
        right: Right = "adapters.write",
        *,
        members_alone: bool = False,
        max_bytes: int = MAX_FORM_BYTES,
    ) -> Endpoint:
        """An endpoint for a form of a user whose role has `right`. `members_alone`: refuses operators who act
        for a member, as it spends the tenant's money or creates credentials.
        """

        async def serve(request: Request, user: TenantUser) -> Response:
            authorization.require_same_origin(request)
            form = await read_form(request, max_bytes=max_bytes)
            authorization.require_token(user, form.get("csrf_token", ""))
            authorization.require_change(user, right, members_alone=members_alone)
            return await change(request, user, form)

        return self.view(serve)

    def script_action(
        self, change: View, right: Right = "adapters.write", *, members_alone: bool = False
    ) -> Endpoint:
        """An endpoint that the console's own scripts call to change something. The CSRF token comes in a
        header, which no form of another site can send. `members_alone` as in `action`.
        """

        async def serve(request: Request, user: TenantUser) -> Response:
            authorization.require_same_origin(request)
            authorization.require_token(user, request.headers.get(CSRF_HEADER, ""))
            authorization.require_change(user, right, members_alone=members_alone)
            return await change(request, user)

        return self.view(serve)

    def file_action(
        self, change: FileAction, right: Right, *, max_files: int, max_field_bytes: int = MAX_FIELD_BYTES
    ) -> Endpoint:
        """An endpoint for a form with files, for members only. The role is checked before the files are
        read.
        """

        async def serve(request: Request, user: TenantUser) -> Response:
            authorization.require_same_origin(request)
            authorization.require_change(user, right, members_alone=True)
            async with read_files(request, max_files, max_field_bytes) as form:
                authorization.require_token(user, form.fields.get("csrf_token", ""))
                return await change(request, user, form)

        return self.view(serve)

    # For operators --------------------------------------------------------------------------------------

    def operator_view(self, serve: OperatorView) -> Endpoint:
        """An endpoint for operators; it answers 404 to anyone else."""

        async def answer(request: Request, principal: Principal) -> Response:
            return await serve(request, operator_of(principal))

        return self._authenticated(answer)

    def operator_action(
        self, change: OperatorAction, *, always: bool = False, max_fields: int = MAX_FIELDS
    ) -> Endpoint:
        """An endpoint for a form of an operator. Unless `always`, read-only operators are refused."""

        async def serve(request: Request, operator: Operator) -> Response:
            authorization.require_same_origin(request)
            form = await read_form(request, max_fields)
            authorization.require_token(operator, form.get("csrf_token", ""))
            if not (always or operator.may_change):
                raise HTTPException(
                    403, "Your operator account is read-only. Ask another operator to change this."
                )
            return await change(request, operator, form)

        return self.operator_view(serve)

    # For everyone -----------------------------------------------------------------------------------------

    def public(self, serve: Endpoint) -> Endpoint:
        """An endpoint that needs no signed-in user."""

        async def endpoint(request: Request) -> Response:
            authorization.require_private(request)
            try:
                return await serve(request)
            except ClientDisconnect:
                return Response(status_code=499)
            except self._expected_errors as error:
                return await self.error_page(request, error)

        return endpoint

    def account_view(self, serve: AccountView) -> Endpoint:
        """An endpoint for the signed-in user's own account, also before they have set up a required second
        factor. Operators who act for a user are refused.
        """

        async def answer(request: Request, principal: Principal) -> Response:
            if isinstance(principal, TenantUser) and principal.operator is not None:
                raise HTTPException(403, authorization.MEMBERS_ONLY)
            return await serve(request, principal)

        return self._authenticated(answer, enrolling=True)

    def account_action(self, change: AccountAction) -> Endpoint:
        """An endpoint for a form of the signed-in user's own account."""

        async def serve(request: Request, principal: Principal) -> Response:
            authorization.require_same_origin(request)
            form = await read_form(request)
            authorization.require_token(principal, form.get("csrf_token", ""))
            return await change(request, principal, form)

        return self.account_view(serve)

    # ------------------------------------------------------------------------------------------------------

    def _authenticated(self, answer: AccountView, *, enrolling: bool = False) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            authorization.require_private(request)
            opened = await self.sessions.find(security.session_id(request))
            principal = None if opened is None else await self.principal_of(opened)
            if opened is None or principal is None:
                return await self._sign_in_first(request, opened)
            opened = principal.opened
            request.state.principal = principal
            signed_in = (
                principal.operator if isinstance(principal, TenantUser) else None
            ) or principal.account
            if signed_in.must_enrol and not enrolling:
                return self._enrol_first(request)
            if isinstance(principal, TenantUser) and principal.operator is not None:
                request.state.guest = principal
            try:
                if isinstance(principal, TenantUser):
                    request.state.incidents = await self._incidents.public()
                response = await answer(request, principal)
            except ClientDisconnect:
                response = Response(status_code=499)
            except self._expected_errors as error:
                response = await self.error_page(request, error)
            if getattr(request.state, "has_shown_flash", False):
                await self.sessions.set_flash(opened, "")
            # However it ended: the old id dies in seconds. Unless the answer has set another one.
            if opened.fresh and "set-cookie" not in response.headers:
                security.set_session(request, response, opened.id)
            return response

        return endpoint

    async def _sign_in_first(self, request: Request, opened: OpenSession | None) -> Response:
        """Redirects to the sign-in form, whose session remembers the page that was asked for. A sign-in that
        is in progress goes on.
        """
        if is_by_script(request):
            error = {"message": "You're signed out. Sign in again.", "param": None}
            return JSONResponse({"error": error}, status_code=401)
        next_path = path_to_return_to(request)
        response = self.redirect(request, "/sign-in")
        if opened is not None and opened.session.user_id is None:
            if next_path:
                await self.sessions.set_next_path(opened, next_path)
            return response
        has_ended = security.session_id(request) is not None
        if has_ended or next_path:
            flash = SESSION_ENDED if has_ended else ""
            started = await self.sessions.begin(flash=flash, next_path=next_path)
            security.set_session(request, response, started.id)
        return response

    def _enrol_first(self, request: Request) -> Response:
        if is_by_script(request):
            error = {"message": "Set up two-factor authentication first.", "param": None}
            return JSONResponse({"error": error}, status_code=403)
        return self.redirect(request, SECOND_FACTOR_PATH)

    async def _redirect_operator(self, request: Request, operator: Operator) -> Response:
        """An operator at a tenant's page: they typed its address, or their time in its console is over."""
        taken = operator.session.impersonation
        if request.method not in ("GET", "HEAD") or is_by_script(request):
            raise HTTPException(403, "You're not in a tenant's console any more. Open it again.")
        if taken is None:
            return self.redirect(request, OPERATOR_HOME)
        opened = await self.sessions.impersonate(operator.opened, None)
        await self.sessions.set_flash(opened, "Your access to this console has ended.")
        response = self.redirect(request, f"{OPERATOR_HOME}/tenants/{quote(taken.tenant_id)}")
        security.set_session(request, response, opened.id)
        return response
