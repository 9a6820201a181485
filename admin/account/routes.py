"""The account of whoever is signed in, over HTTP: their name, their password, their sessions.

Owns the paths, and that whoever changes what lets them in proves again who they are, gets another session,
and is out everywhere else. Operators have one as everybody has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.account import page
from admin.account.page import AccountPage
from admin.services import ConsoleServices
from admin.sign_in.lockout import Lockout, waiting_words
from admin.web import form_errors, security
from admin.web.console import Frame, Person
from admin.web.request_info import address_of
from tenants.errors import WrongCode, WrongPassword
from tenants.passwords import MIN_PASSWORD_LEN


class AccountRoutes:
    """`/account`, and below it what the page's forms do."""

    def __init__(self, frame: Frame, services: ConsoleServices) -> None:
        self._frame = frame
        self._members = services.account.members
        self._credentials = services.account.credentials
        self._identities = services.account.identities
        self._providers = services.sign_in.providers
        self._pages = AccountPage(
            services.account.second_factors,
            services.account.identities,
            frame.sessions,
            {provider.issuer: provider.title for provider in services.sign_in.providers},
        )
        self._confirming = Confirming(services)
        self._explanations = services.explanations
        self._refusals = form_errors.refusals(services.explanations)

    def routes(self) -> list[Route]:
        own, changing = self._frame.own, self._frame.changing_own
        return [
            Route("/account", own(self.show), methods=["GET"]),
            Route("/account/name", changing(self.rename), methods=["POST"]),
            Route("/account/password", changing(self.change_password), methods=["POST"]),
            Route("/account/identities/{identity}/remove", changing(self.unbind), methods=["POST"]),
            Route("/account/sessions/end-others", changing(self.end_others), methods=["POST"]),
            Route("/account/sessions/{handle}/end", changing(self.end_one), methods=["POST"]),
        ]

    async def show(self, request: Request, person: Person) -> Response:
        return await self._page(request, person, {}, form_errors.NONE)

    async def rename(self, request: Request, person: Person, form: dict[str, str]) -> Response:
        account = person.account
        try:
            await self._members.update(
                account.tenant_id, account.user_id, person.acting(request), name=form.get("name", "")
            )
        except self._refusals as error:
            status, beside = form_errors.explain(error, page.FIELDS, self._explanations)
            return await self._page(request, person, form, beside, status)
        return await self._frame.done(request, person, "/account", "Your name is changed.")

    async def change_password(self, request: Request, person: Person, form: dict[str, str]) -> Response:
        account = person.account
        try:
            if form.get("password") != form.get("again"):
                raise form_errors.Refused("password", "The two passwords are not the same.")
            await self._confirming.ask(request, person, form, "old")
            await self._credentials.change(
                account, form.get("old", ""), form.get("password", ""), person.acting(request)
            )
        except self._refusals as error:
            status, beside = form_errors.explain(error, page.FIELDS, self._explanations)
            return await self._page(request, person, {}, beside, status)
        said = "Your password is changed. Everywhere else you are signed out."
        return await renewed(self._frame, request, person, "/account", said)

    async def unbind(self, request: Request, person: Person, form: dict[str, str]) -> Response:
        await self._identities.unbind(person.account, request.path_params["identity"], person.acting(request))
        return await renewed(self._frame, request, person, "/account", "It lets you in no longer.")

    async def end_one(self, request: Request, person: Person, form: dict[str, str]) -> Response:
        handle = request.path_params["handle"]
        if page.HANDLE.fullmatch(handle) is None:
            raise HTTPException(404, "There is no such session.")
        ended = await self._frame.sessions.end_of_user(
            person.account.user_id, handle=handle, but=person.opened.id
        )
        said = "That session is ended." if ended else "That session had ended already."
        return await self._frame.done(request, person, "/account", said)

    async def end_others(self, request: Request, person: Person, form: dict[str, str]) -> Response:
        await self._credentials.end_sessions(person.account)
        return await renewed(self._frame, request, person, "/account", "You are signed out everywhere else.")

    async def _page(
        self,
        request: Request,
        person: Person,
        fields: Mapping[str, str],
        beside: form_errors.Problems,
        status: int = 200,
    ) -> Response:
        shown = await self._pages.gather(person.account, person.opened)
        connected = {one.provider for one in shown.identities}
        context: dict[str, Any] = {
            "page": shown,
            "fields": {"name": fields.get("name", person.account.name)},
            "problems": beside,
            "providers": [(one.name, one.title) for one in self._providers if one.title not in connected],
            "min_len": MIN_PASSWORD_LEN,
        }
        return self._frame.page(request, "account.html", status, visitor=person, section="account", **context)


class Confirming:
    """Asks somebody who is signed in once more who they are: a browser left alone is not enough to change
    what lets them in. Wrong answers count as those at the sign-in do.
    """

    def __init__(self, services: ConsoleServices) -> None:
        self._credentials = services.account.credentials
        self._factors = services.account.second_factors
        self._lockout = Lockout(services.redis)

    async def ask(
        self, request: Request, person: Person, form: Mapping[str, str], field: str = "confirm"
    ) -> None:
        """Their password is in the field; of who has none a code. Raises `form_errors.Refused`."""
        account, address = person.account, address_of(request)
        if not (account.has_password or account.has_second_factor):
            return
        whose = account.email if account.has_password else f"code:{account.user_id}"
        wait_s = await self._lockout.attempt(whose, address)
        if wait_s:
            raise form_errors.Refused(field, waiting_words(wait_s))
        given = form.get(field, "")
        try:
            if account.has_password:
                await self._credentials.check(account, given)
            else:
                await self._factors.verify(account.tenant_id, account.user_id, given)
        except WrongPassword:
            raise form_errors.Refused(field, "This is not your password.") from None
        except WrongCode:
            raise form_errors.Refused(field, "This code is not right, or not any more.") from None
        await self._lockout.succeeded(whose, address)


async def renewed(frame: Frame, request: Request, person: Person, path: str, said: str) -> Response:
    """Go on to another page with another session, in which that is told; every other one is ended."""
    opened = await frame.sessions.renew(person.opened)
    await frame.sessions.end_of_user(person.account.user_id, but=opened.id)
    await frame.sessions.say(opened, said)
    response = frame.to(request, path)
    security.set_session(request, response, opened.id)
    return response
