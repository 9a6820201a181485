"""Serves the page on which an invited person creates their account.

The invitation's token comes behind the # of its link. The page's script puts it into the form; without
scripts it is pasted.
"""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.services import ConsoleServices
from admin.sign_in.completion import SignInCompletion
from admin.web import form_errors, security
from admin.web.authorization import EXPIRED
from admin.web.console import Console
from admin.web.form_submission import read_submission
from admin.web.request_info import address_of, request_id_of
from admin.web.sessions import OpenSession
from tenants.errors import InviteInvalid
from tenants.passwords import MIN_PASSWORD_LEN

_FIELDS = ("token", "name", "password")
_INVALID = "This invitation is invalid or has expired. Ask an admin of the organization for a new one."


class JoinRoutes:
    """`/join`, which needs no signed-in user."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._invites = services.account.invites
        self._providers = [(one.name, one.title) for one in services.sign_in.providers]
        self._completion = SignInCompletion(console, services)
        self._error_mapping = services.error_mapping
        self._expected_errors = form_errors.expected_errors(services.error_mapping)

    def routes(self) -> list[Route]:
        public = self._console.public
        return [
            Route("/join", public(self.show), methods=["GET"]),
            Route("/join", public(self.join), methods=["POST"]),
        ]

    async def show(self, request: Request) -> Response:
        opened = await self._console.sessions.find(security.session_id(request))
        return await self._form(request, opened, {}, form_errors.NO_ERRORS)

    async def join(self, request: Request) -> Response:
        began_at = time.time()
        submission = await read_submission(request, self._console.sessions)
        form, opened = submission.fields, submission.accepted
        if opened is None:
            return await self._form(
                request, submission.opened, form, form_errors.FormErrors(form=EXPIRED), 403
            )
        try:
            if form.get("password") != form.get("again"):
                raise form_errors.FieldError("password", "The passwords don't match.")
            account = await self._invites.accept(
                form.get("token", "").strip().rpartition("#")[2],  # the link itself will do
                form.get("password", ""),
                name=form.get("name", ""),
                address=address_of(request),
                request_id=request_id_of(request),
            )
        except InviteInvalid:
            return await self._form(request, opened, form, form_errors.FormErrors(token=_INVALID), 422)
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, _FIELDS, self._error_mapping)
            return await self._form(request, opened, form, errors, status)
        message = f"Welcome to {account.tenant_name}. Your role is {account.role}."
        return await self._completion.open_session(
            request, opened, account, "invitation", began_at, message=message
        )

    async def _form(
        self,
        request: Request,
        opened: OpenSession | None,
        fields: dict[str, str],
        errors: form_errors.FormErrors,
        status: int = 200,
    ) -> Response:
        opened = opened or await self._console.sessions.begin()
        kept = {name: fields.get(name, "") for name in ("token", "name")}
        response = self._console.render(
            request,
            "join.html",
            status,
            csrf_token=opened.session.csrf_token,
            fields=kept,
            errors=errors,
            min_len=MIN_PASSWORD_LEN,
            providers=self._providers,
        )
        if opened.fresh:
            security.set_session(request, response, opened.id)
        return response
