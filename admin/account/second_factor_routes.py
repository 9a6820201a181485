"""A second factor of whoever is signed in, over HTTP: set up, confirmed by a code, removed.

Owns the paths, and that what an authenticator application is given is on no page of a GET: it is shown in
answer to the form that asks for it, and codes to recover with in answer to the one that made them.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.account import page
from admin.account.routes import Confirming, renewed
from admin.services import ConsoleServices
from admin.sign_in.lockout import Lockout, waiting_words
from admin.web import form_errors, security
from admin.web.console import ENROL, Frame, Person
from admin.web.request_info import address_of
from tenants.errors import NoSecondFactor, SecondFactorKept, WrongCode

_WRONG = "This code is not right. Look whether the device's clock is, and type the one it shows now."


class SecondFactorRoutes:
    """`/account/second-factor`, also for those who have to have one before they see anything else."""

    def __init__(self, frame: Frame, services: ConsoleServices) -> None:
        self._frame = frame
        self._factors = services.account.second_factors
        self._lockout = Lockout(services.redis)
        self._confirming = Confirming(services)
        self._explanations = services.explanations
        self._refusals = form_errors.refusals(services.explanations)

    def routes(self) -> list[Route]:
        own, changing = self._frame.own, self._frame.changing_own
        return [
            Route(ENROL, own(self.show), methods=["GET"]),
            Route(f"{ENROL}/begin", changing(self.begin), methods=["POST"]),
            Route(f"{ENROL}/confirm", changing(self.confirm), methods=["POST"]),
            Route(f"{ENROL}/recovery", changing(self.renew_recovery), methods=["POST"]),
            Route(f"{ENROL}/remove", changing(self.remove), methods=["POST"]),
        ]

    async def show(self, request: Request, person: Person) -> Response:
        return await self._about(request, person, form_errors.NONE)

    async def begin(self, request: Request, person: Person, form: dict[str, str]) -> Response:
        return await self._set_up(request, person, form_errors.NONE)

    async def confirm(self, request: Request, person: Person, form: dict[str, str]) -> Response:
        try:
            codes = await self._counted(request, person, form, self._factors.confirm)
        except NoSecondFactor:  # set up elsewhere meanwhile, or never begun
            return self._frame.to(request, ENROL)
        except form_errors.Refused as error:
            return await self._set_up(request, person, form_errors.Problems(code=error.message), 422)
        return await self._codes(request, person, codes, is_new=True)

    async def renew_recovery(self, request: Request, person: Person, form: dict[str, str]) -> Response:
        try:
            codes = await self._counted(request, person, form, self._factors.renew_recovery)
        except form_errors.Refused as error:
            return await self._about(request, person, form_errors.Problems(code=error.message), 422)
        return await self._codes(request, person, codes, is_new=False)

    async def remove(self, request: Request, person: Person, form: dict[str, str]) -> Response:
        try:
            await self._confirming.ask(request, person, form)
            await self._factors.remove(person.account, person.acting(request))
        except SecondFactorKept as error:
            return await self._about(request, person, form_errors.Problems(form=f"{error}."), 409)
        except self._refusals as error:
            status, beside = form_errors.explain(error, ("confirm",), self._explanations)
            return await self._about(request, person, beside, status)
        said = "Your second factor is removed: your password alone lets you in."
        return await renewed(self._frame, request, person, "/account", said)

    async def _counted(self, request: Request, person: Person, form: dict[str, str], use: Any) -> list[str]:
        """Raises `form_errors.Refused` for a wrong code, and for too many of them."""
        whose, address = f"code:{person.account.user_id}", address_of(request)
        wait_s = await self._lockout.attempt(whose, address)
        if wait_s:
            raise form_errors.Refused("code", waiting_words(wait_s))
        try:
            codes: list[str] = await use(person.account, form.get("code", ""), person.acting(request))
        except WrongCode:
            raise form_errors.Refused("code", _WRONG) from None
        await self._lockout.succeeded(whose, address)
        return codes

    async def _about(
        self, request: Request, person: Person, beside: form_errors.Problems, status: int = 200
    ) -> Response:
        factor = await self._factors.find(person.account)
        return self._page(request, "second_factor.html", person, status, factor=factor, problems=beside)

    async def _set_up(
        self, request: Request, person: Person, beside: form_errors.Problems, status: int = 200
    ) -> Response:
        enrolment = await self._factors.begin(person.account)
        pieces = [enrolment.secret[at : at + 4] for at in range(0, len(enrolment.secret), 4)]
        return self._page(
            request,
            "second_factor_new.html",
            person,
            status,
            picture=page.picture(enrolment.uri),
            secret=" ".join(pieces),
            problems=beside,
        )

    async def _codes(self, request: Request, person: Person, codes: list[str], *, is_new: bool) -> Response:
        """Whoever has just made themselves harder to imitate gets another session, and is out elsewhere."""
        opened = await self._frame.sessions.renew(person.opened)
        await self._frame.sessions.end_of_user(person.account.user_id, but=opened.id)
        response = self._page(request, "second_factor_codes.html", person, 201, codes=codes, is_new=is_new)
        security.set_session(request, response, opened.id)
        return response

    def _page(
        self, request: Request, template: str, person: Person, status: int = 200, **context: Any
    ) -> Response:
        return self._frame.page(request, template, status, visitor=person, section="account", **context)
