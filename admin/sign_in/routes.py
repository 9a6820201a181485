"""Serves the routes of signing in with a password and a second factor, and of signing out."""

from __future__ import annotations

import time
from datetime import datetime

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.services import ConsoleServices
from admin.sign_in.completion import SignInCompletion
from admin.sign_in.lockout import Lockout, waiting_words
from admin.web import security
from admin.web.authorization import EXPIRED
from admin.web.console import Console
from admin.web.form_submission import read_submission
from admin.web.request_info import address_of
from admin.web.sessions import OpenSession, PendingSignIn
from tenants.accounts import Membership
from tenants.errors import NoSecondFactor, WrongCode

_WRONG = "Incorrect email or password."
_WRONG_CODE = "Incorrect or expired code. Each code works once and for 30 seconds. Wait for the next one."


class SignInRoutes:
    """`/sign-in` and `/sign-out`, for everybody."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._sessions = console.sessions
        self._accounts = services.accounts
        self._factors = services.account.second_factors
        self._providers = [(one.name, one.title) for one in services.sign_in.providers]
        self._completion = SignInCompletion(console, services)
        self._lockout = Lockout(services.redis)

    def routes(self) -> list[Route]:
        public = self._console.public
        return [
            Route("/sign-in", public(self.show), methods=["GET"]),
            Route("/sign-in", public(self.sign_in), methods=["POST"]),
            Route("/sign-in/code", public(self.show_code), methods=["GET"]),
            Route("/sign-in/code", public(self.enter_code), methods=["POST"]),
            Route("/sign-out", public(self.sign_out), methods=["POST"]),
        ]

    async def show(self, request: Request) -> Response:
        opened = await self._sessions.find(security.session_id(request))
        if opened is not None and opened.session.user_id is not None:
            response: Response = self._console.redirect(request, "/")
            if opened.fresh:
                security.set_session(request, response, opened.id)
            return response
        return await self._form(request, opened)

    async def sign_in(self, request: Request) -> Response:
        proved_at = time.time()
        submission = await read_submission(request, self._sessions)
        email, password = submission.fields.get("email", ""), submission.fields.get("password", "")
        opened = submission.accepted
        if opened is None:
            return await self._form(request, submission.opened, email, EXPIRED, 403)
        address = address_of(request)
        wait_s = await self._lockout.attempt(email, address)
        if wait_s:
            response = await self._form(request, opened, email, waiting_words(wait_s), 429)
            response.headers["Retry-After"] = str(wait_s)
            return response
        account = await self._accounts.authenticate(email, password)
        if account is None:
            return await self._form(request, opened, email, _WRONG, 401)
        await self._lockout.succeeded(email, address)
        return await self._completion.complete(request, opened, account, "password", proved_at)

    async def show_code(self, request: Request) -> Response:
        opened = await self._sessions.find(security.session_id(request))
        if opened is None or opened.session.pending is None:
            return self._console.redirect(request, "/sign-in")
        return self._code_form(request, opened)

    async def enter_code(self, request: Request) -> Response:
        submission = await read_submission(request, self._sessions)
        form, opened = submission.fields, submission.opened
        pending = None if opened is None else opened.session.pending
        if opened is None or pending is None:
            return self._console.redirect(request, "/sign-in")
        if submission.accepted is None:
            return self._code_form(request, opened, EXPIRED, 403)
        # Counted apart from passwords: an attacker with the password could otherwise start over each time.
        whose, address = f"code:{pending.user_id}", address_of(request)
        wait_s = await self._lockout.attempt(whose, address)
        if wait_s:
            response = self._code_form(request, opened, waiting_words(wait_s), 429)
            response.headers["Retry-After"] = str(wait_s)
            return response
        try:
            proof = await self._factors.verify(pending.tenant_id, pending.user_id, form.get("code", ""))
        except WrongCode:
            return self._code_form(request, opened, _WRONG_CODE, 401)
        except NoSecondFactor:  # taken away meanwhile
            return await self._begin_again(request, opened)
        account = await self._accounts.find(pending.user_id, pending.tenant_id)
        if account is None or _is_over(pending, account.sessions_from):
            return await self._begin_again(request, opened)
        await self._lockout.succeeded(whose, address)
        message = "" if proof == "totp" else await self._words_on_recovery(account)
        by = f"{pending.by}, {proof}"
        return await self._completion.open_session(
            request, opened, account, by, pending.proved_at, message=message
        )

    async def sign_out(self, request: Request) -> Response:
        submission = await read_submission(request, self._sessions)
        if submission.opened is not None:
            if submission.accepted is None:
                raise HTTPException(403, EXPIRED)
            await self._sessions.end(submission.opened.id)
        response = self._console.redirect(request, "/sign-in")
        security.clear_session(request, response)
        response.headers["Clear-Site-Data"] = '"storage"'  # files that the upload page remembers
        return response

    async def _begin_again(self, request: Request, opened: OpenSession) -> Response:
        await self._sessions.end(opened.id)
        return self._console.redirect(request, "/sign-in")

    async def _words_on_recovery(self, account: Membership) -> str:
        view = await self._factors.find(account)
        left = 0 if view is None else view.num_recovery
        return (
            f"You signed in with a recovery code, which can't be used again. {left} left. In your account "
            "settings you can generate new codes or set up another device."
        )

    async def _form(
        self,
        request: Request,
        opened: OpenSession | None,
        email: str = "",
        problem: str = "",
        status: int = 200,
    ) -> Response:
        opened = opened or await self._sessions.begin()
        message = opened.session.flash if opened.session.user_id is None else ""
        response = self._console.render(
            request,
            "sign_in.html",
            status,
            csrf_token=opened.session.csrf_token,
            email=email[:254],
            problem=problem,
            message=message,
            providers=self._providers,
        )
        if message:
            await self._sessions.set_flash(opened, "")
        if opened.fresh:
            security.set_session(request, response, opened.id)
        return response

    def _code_form(
        self, request: Request, opened: OpenSession, problem: str = "", status: int = 200
    ) -> Response:
        token = opened.session.csrf_token
        return self._console.render(request, "sign_in_code.html", status, csrf_token=token, problem=problem)


def _is_over(pending: PendingSignIn, sessions_from: datetime | None) -> bool:
    """Whether the password that was proved has become another one meanwhile."""
    return sessions_from is not None and pending.proved_at < sessions_from.timestamp()
