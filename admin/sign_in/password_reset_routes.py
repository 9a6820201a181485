"""Serves the routes of a forgotten password: requesting a reset link by email, and choosing a new password
with it.

Neither wording nor timing of the answer reveals which emails have an account. Where email is not configured,
an admin shares a link (`admin.members.routes`).
"""

from __future__ import annotations

import asyncio

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin import formatting
from admin.mail import ConsoleMail
from admin.services import ConsoleServices
from admin.sign_in.lockout import Lockout, waiting_words
from admin.web import form_errors, security
from admin.web.authorization import EXPIRED
from admin.web.console import Console
from admin.web.form_submission import read_submission
from admin.web.request_info import address_of, request_id_of
from admin.web.sessions import OpenSession
from billing.notifications.errors import MailNotSent
from db.errors import DatabaseUnavailable
from tenants.errors import ResetInvalid
from tenants.passwords import MIN_PASSWORD_LEN

log = structlog.get_logger(__name__)
_FIELDS = ("token", "password")
_INVALID = "This link is invalid or has expired. Request a new one."


class RecoveryRoutes:
    """`/forgot` and `/reset`, which need no signed-in user."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._sessions = console.sessions
        self._credentials = services.account.credentials
        self._mail = services.sign_in.mail
        self._lockout = Lockout(services.redis)
        self._error_mapping = services.error_mapping
        self._expected_errors = form_errors.expected_errors(services.error_mapping)
        self._sending: set[asyncio.Task[None]] = set()

    def routes(self) -> list[Route]:
        public = self._console.public
        return [
            Route("/forgot", public(self.show), methods=["GET"]),
            Route("/forgot", public(self.ask), methods=["POST"]),
            Route("/reset", public(self.show_reset), methods=["GET"]),
            Route("/reset", public(self.reset), methods=["POST"]),
        ]

    async def show(self, request: Request) -> Response:
        return await self._page(request, await self._found(request), "forgot.html", problem="", email="")

    async def ask(self, request: Request) -> Response:
        submission = await read_submission(request, self._sessions)
        form, opened = submission.fields, submission.accepted
        if opened is None:
            return await self._page(request, submission.opened, "forgot.html", 403, problem=EXPIRED, email="")
        if self._mail is None:
            raise HTTPException(
                404,
                "Email isn't configured on this service. Ask an admin of your organization for a reset link.",
            )
        email = form.get("email", "").strip()[:254]
        wait_s = await self._lockout.attempt(f"reset:{email}", address_of(request))
        if wait_s:
            problem = waiting_words(wait_s)
            response = await self._page(request, opened, "forgot.html", 429, problem=problem, email="")
            response.headers["Retry-After"] = str(wait_s)
            return response
        # Looked up and sent while the answer is on its way, so that its timing reveals nothing.
        sending = asyncio.create_task(self._send(self._mail, email))
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)
        return await self._page(request, opened, "forgot.html", problem="", email=email)

    async def show_reset(self, request: Request) -> Response:
        return await self._form(request, await self._found(request), "", form_errors.NO_ERRORS)

    async def reset(self, request: Request) -> Response:
        submission = await read_submission(request, self._sessions)
        form, opened = submission.fields, submission.accepted
        token = form.get("token", "").strip().rpartition("#")[2]  # the link itself will do
        if opened is None:
            return await self._form(
                request, submission.opened, token, form_errors.FormErrors(form=EXPIRED), 403
            )
        try:
            if form.get("password") != form.get("again"):
                raise form_errors.FieldError("password", "The passwords don't match.")
            await self._credentials.reset(
                token,
                form.get("password", ""),
                address=address_of(request),
                request_id=request_id_of(request),
            )
        except ResetInvalid:
            return await self._form(request, opened, token, form_errors.FormErrors(token=_INVALID), 422)
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, _FIELDS, self._error_mapping)
            return await self._form(request, opened, token, errors, status)
        if opened.session.user_id is not None:  # a user was signed in here
            await self._sessions.end(opened.id)
            opened = await self._sessions.begin()
        await self._sessions.set_flash(opened, "Password changed. Sign in with your new password.")
        response = self._console.redirect(request, "/sign-in")
        security.set_session(request, response, opened.id)
        return response

    async def _send(self, mail: ConsoleMail, email: str) -> None:
        try:
            made = await self._credentials.request_reset(email)
            if made is not None:
                await mail.reset(made.email, made.token, until=formatting.moment(made.expires_at))
        except (MailNotSent, DatabaseUnavailable) as error:
            log.error("a mail with leave to choose another password was not sent", error=str(error))

    async def _found(self, request: Request) -> OpenSession | None:
        return await self._sessions.find(security.session_id(request))

    async def _form(
        self,
        request: Request,
        opened: OpenSession | None,
        token: str,
        errors: form_errors.FormErrors,
        status: int = 200,
    ) -> Response:
        return await self._page(
            request, opened, "reset.html", status, token=token, errors=errors, min_len=MIN_PASSWORD_LEN
        )

    async def _page(
        self,
        request: Request,
        opened: OpenSession | None,
        template: str,
        status: int = 200,
        **context: object,
    ) -> Response:
        opened = opened or await self._sessions.begin()
        context |= {"csrf_token": opened.session.csrf_token, "mails": self._mail is not None}
        response = self._console.render(request, template, status, **context)
        if opened.fresh:
            security.set_session(request, response, opened.id)
        return response
