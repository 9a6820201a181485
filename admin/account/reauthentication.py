"""Asks a signed-in user for their password or code again before a change to how they sign in."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from admin.services import ConsoleServices
from admin.sign_in.lockout import Lockout, waiting_words
from admin.web import form_errors, security
from admin.web.console import Console
from admin.web.principals import Principal
from admin.web.request_info import address_of
from tenants.errors import WrongCode, WrongPassword


class Reauthentication:
    """Requires proof of identity again, so that an unattended browser is not enough to change how its user
    signs in. Wrong answers count like failed sign-ins.
    """

    def __init__(self, services: ConsoleServices) -> None:
        self._credentials = services.account.credentials
        self._factors = services.account.second_factors
        self._lockout = Lockout(services.redis)

    async def require(
        self, request: Request, principal: Principal, form: Mapping[str, str], field: str = "confirm"
    ) -> None:
        """Their password is in the field; of who has none a code. Raises `form_errors.FieldError`."""
        account, address = principal.account, address_of(request)
        if not (account.has_password or account.has_second_factor):
            return
        whose = account.email if account.has_password else f"code:{account.user_id}"
        wait_s = await self._lockout.attempt(whose, address)
        if wait_s:
            raise form_errors.FieldError(field, waiting_words(wait_s))
        given = form.get(field, "")
        try:
            if account.has_password:
                await self._credentials.check(account, given)
            else:
                await self._factors.verify(account.tenant_id, account.user_id, given)
        except WrongPassword:
            raise form_errors.FieldError(field, "Incorrect password.") from None
        except WrongCode:
            raise form_errors.FieldError(field, "Incorrect or expired code.") from None
        await self._lockout.succeeded(whose, address)


async def redirect_with_new_session(
    console: Console, request: Request, principal: Principal, path: str, message: str
) -> Response:
    """Redirects with a message, in a new session; ends all other sessions of the user."""
    opened = await console.sessions.renew(principal.opened)
    await console.sessions.end_of_user(principal.account.user_id, but=opened.id)
    await console.sessions.set_flash(opened, message)
    response = console.redirect(request, path)
    security.set_session(request, response, opened.id)
    return response
