"""Serves the routes of two-factor authentication: setting it up, confirming it, renewing recovery codes,
disabling it.

The secret and the recovery codes are shown only in answer to the form that created them, never by a GET.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.account import page
from admin.account.reauthentication import Reauthentication, redirect_with_new_session
from admin.services import ConsoleServices
from admin.sign_in.lockout import Lockout, waiting_words
from admin.web import form_errors, security
from admin.web.console import SECOND_FACTOR_PATH, Console
from admin.web.principals import Principal
from admin.web.request_info import address_of
from tenants.errors import NoSecondFactor, SecondFactorConflict, WrongCode

_WRONG = "Incorrect code. Check your device's clock and enter the current code."


class SecondFactorRoutes:
    """Below `/account/second-factor`; open to users who must set one up before they see other pages."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._factors = services.account.second_factors
        self._lockout = Lockout(services.redis)
        self._reauthentication = Reauthentication(services)
        self._error_mapping = services.error_mapping
        self._expected_errors = form_errors.expected_errors(services.error_mapping)

    def routes(self) -> list[Route]:
        account_view, account_action = self._console.account_view, self._console.account_action
        return [
            Route(SECOND_FACTOR_PATH, account_view(self.show), methods=["GET"]),
            Route(f"{SECOND_FACTOR_PATH}/begin", account_action(self.begin), methods=["POST"]),
            Route(f"{SECOND_FACTOR_PATH}/confirm", account_action(self.confirm), methods=["POST"]),
            Route(f"{SECOND_FACTOR_PATH}/recovery", account_action(self.renew_recovery), methods=["POST"]),
            Route(f"{SECOND_FACTOR_PATH}/remove", account_action(self.remove), methods=["POST"]),
        ]

    async def show(self, request: Request, principal: Principal) -> Response:
        return await self._about(request, principal, form_errors.NO_ERRORS)

    async def begin(self, request: Request, principal: Principal, form: dict[str, str]) -> Response:
        return await self._set_up(request, principal, form_errors.NO_ERRORS)

    async def confirm(self, request: Request, principal: Principal, form: dict[str, str]) -> Response:
        try:
            codes = await self._counted(request, principal, form, self._factors.confirm)
        except NoSecondFactor:  # set up elsewhere meanwhile, or never begun
            return self._console.redirect(request, SECOND_FACTOR_PATH)
        except form_errors.FieldError as error:
            return await self._set_up(request, principal, form_errors.FormErrors(code=error.message), 422)
        return await self._codes(request, principal, codes, is_new=True)

    async def renew_recovery(self, request: Request, principal: Principal, form: dict[str, str]) -> Response:
        try:
            codes = await self._counted(request, principal, form, self._factors.renew_recovery)
        except form_errors.FieldError as error:
            return await self._about(request, principal, form_errors.FormErrors(code=error.message), 422)
        return await self._codes(request, principal, codes, is_new=False)

    async def remove(self, request: Request, principal: Principal, form: dict[str, str]) -> Response:
        try:
            await self._reauthentication.require(request, principal, form)
            await self._factors.remove(principal.account, principal.acting(request))
        except SecondFactorConflict as error:
            return await self._about(request, principal, form_errors.FormErrors(form=f"{error}."), 409)
        except self._expected_errors as error:
            status, errors = form_errors.explain(error, ("confirm",), self._error_mapping)
            return await self._about(request, principal, errors, status)
        message = "Two-factor authentication disabled."
        return await redirect_with_new_session(self._console, request, principal, "/account", message)

    async def _counted(
        self, request: Request, principal: Principal, form: dict[str, str], use: Any
    ) -> list[str]:
        """Raises `form_errors.FieldError` for a wrong code, and for too many of them."""
        whose, address = f"code:{principal.account.user_id}", address_of(request)
        wait_s = await self._lockout.attempt(whose, address)
        if wait_s:
            raise form_errors.FieldError("code", waiting_words(wait_s))
        try:
            codes: list[str] = await use(principal.account, form.get("code", ""), principal.acting(request))
        except WrongCode:
            raise form_errors.FieldError("code", _WRONG) from None
        await self._lockout.succeeded(whose, address)
        return codes

    async def _about(
        self, request: Request, principal: Principal, errors: form_errors.FormErrors, status: int = 200
    ) -> Response:
        factor = await self._factors.find(principal.account)
        return self._page(request, "second_factor.html", principal, status, factor=factor, errors=errors)

    async def _set_up(
        self, request: Request, principal: Principal, errors: form_errors.FormErrors, status: int = 200
    ) -> Response:
        enrolment = await self._factors.begin(principal.account)
        pieces = [enrolment.secret[at : at + 4] for at in range(0, len(enrolment.secret), 4)]
        return self._page(
            request,
            "second_factor_new.html",
            principal,
            status,
            picture=page.picture(enrolment.uri),
            secret=" ".join(pieces),
            errors=errors,
        )

    async def _codes(
        self, request: Request, principal: Principal, codes: list[str], *, is_new: bool
    ) -> Response:
        """Starts a new session and ends all others, as after every change to how the user signs in."""
        opened = await self._console.sessions.renew(principal.opened)
        await self._console.sessions.end_of_user(principal.account.user_id, but=opened.id)
        response = self._page(request, "second_factor_codes.html", principal, 201, codes=codes, is_new=is_new)
        security.set_session(request, response, opened.id)
        return response

    def _page(
        self, request: Request, template: str, principal: Principal, status: int = 200, **context: Any
    ) -> Response:
        return self._console.render(
            request, template, status, principal=principal, section="account", **context
        )
