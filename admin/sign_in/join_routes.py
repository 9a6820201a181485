"""How an invited person becomes a user: a page that takes the invitation's code and a password of their own.

The code comes behind the hash of the link they were given, which the page's script puts into the form;
without scripts they paste it. Refuses to know what an invitation is good for.
"""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.services import ConsoleServices
from admin.sign_in.completion import Entrance
from admin.web import form_errors, security
from admin.web.console import EXPIRED, Frame
from admin.web.form_submission import read_posted
from admin.web.request_info import address_of, request_id_of
from admin.web.sessions import Opened
from tenants.errors import InviteInvalid
from tenants.passwords import MIN_PASSWORD_LEN

_FIELDS = ("token", "name", "password")
_INVALID = (
    "This invitation is not valid, or not any more: it was used, withdrawn, or is too old. Ask whoever "
    "invited you for another one."
)


class JoinRoutes:
    """`/join`, for nobody who is signed in needs it."""

    def __init__(self, frame: Frame, services: ConsoleServices) -> None:
        self._frame = frame
        self._invites = services.account.invites
        self._providers = [(one.name, one.title) for one in services.sign_in.providers]
        self._entrance = Entrance(frame, services)
        self._explanations = services.explanations
        self._refusals = form_errors.refusals(services.explanations)

    def routes(self) -> list[Route]:
        told = self._frame.told
        return [
            Route("/join", told(self.show), methods=["GET"]),
            Route("/join", told(self.join), methods=["POST"]),
        ]

    async def show(self, request: Request) -> Response:
        opened = await self._frame.sessions.find(security.session_id(request))
        return await self._form(request, opened, {}, form_errors.NONE)

    async def join(self, request: Request) -> Response:
        began_at = time.time()
        posted = await read_posted(request, self._frame.sessions)
        form, opened = posted.fields, posted.accepted
        if opened is None:
            return await self._form(request, posted.opened, form, form_errors.Problems(form=EXPIRED), 403)
        try:
            if form.get("password") != form.get("again"):
                raise form_errors.Refused("password", "The two passwords are not the same.")
            account = await self._invites.accept(
                form.get("token", "").strip().rpartition("#")[2],  # the link itself will do
                form.get("password", ""),
                name=form.get("name", ""),
                address=address_of(request),
                request_id=request_id_of(request),
            )
        except InviteInvalid:
            return await self._form(request, opened, form, form_errors.Problems(token=_INVALID), 422)
        except self._refusals as error:
            status, beside = form_errors.explain(error, _FIELDS, self._explanations)
            return await self._form(request, opened, form, beside, status)
        said = f"Welcome to {account.tenant_name}. You are its {account.role}."
        return await self._entrance.admit(request, opened, account, "invitation", began_at, told=said)

    async def _form(
        self,
        request: Request,
        opened: Opened | None,
        fields: dict[str, str],
        beside: form_errors.Problems,
        status: int = 200,
    ) -> Response:
        opened = opened or await self._frame.sessions.begin()
        kept = {name: fields.get(name, "") for name in ("token", "name")}
        response = self._frame.page(
            request,
            "join.html",
            status,
            csrf_token=opened.session.csrf_token,
            fields=kept,
            problems=beside,
            min_len=MIN_PASSWORD_LEN,
            providers=self._providers,
        )
        if opened.fresh:
            security.set_session(request, response, opened.id)
        return response
