"""Completes a sign-in: opens a session, or asks for the second factor first.

Every way to sign in ends here. The session that the browser came with ends, and the sign-in is recorded.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from admin.services import ConsoleServices
from admin.web import security
from admin.web.console import Console
from admin.web.rendering import OPERATOR_HOME
from admin.web.request_info import address_of, request_id_of
from admin.web.sessions import OpenSession, PendingSignIn
from tenants.accounts import Membership


class SignInCompletion:
    """The one door."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._accounts = services.accounts

    async def complete(
        self,
        request: Request,
        opened: OpenSession | None,
        account: Membership,
        by: str,
        proved_at: float,
        *,
        message: str = "",
    ) -> Response:
        """In, or on to the second factor. `opened`: the session they came with, which ends; `proved_at`: when
        the proving began.
        """
        if not account.has_second_factor:
            return await self.open_session(request, opened, account, by, proved_at, message=message)
        pending = PendingSignIn(account.user_id, account.tenant_id, by, proved_at)
        waiting = await self._console.sessions.begin_second_factor(
            None if opened is None else opened.id, pending, next_path=_next_path(opened)
        )
        response = self._console.redirect(request, "/sign-in/code")
        security.set_session(request, response, waiting.id)
        return response

    async def open_session(
        self,
        request: Request,
        opened: OpenSession | None,
        account: Membership,
        by: str,
        proved_at: float,
        *,
        message: str = "",
    ) -> Response:
        """In."""
        address = address_of(request)
        entered = await self._console.sessions.sign_in(
            None if opened is None else opened.id,
            account.user_id,
            account.tenant_id,
            role=account.role,
            address=address,
            agent=request.headers.get("user-agent", ""),
            proved_at=proved_at,
        )
        await self._accounts.record_sign_in(account, by, address=address, request_id=request_id_of(request))
        if message:
            await self._console.sessions.set_flash(entered, message)
        response = self._console.redirect(request, _destination(account, _next_path(opened)))
        security.set_session(request, response, entered.id)
        return response


def _next_path(opened: OpenSession | None) -> str:
    return "" if opened is None else opened.session.next_path


def _destination(account: Membership, next_path: str) -> str:
    """Returns the page asked for, or the first one if it belongs to the other kind of user."""
    is_for_operators = next_path.startswith(OPERATOR_HOME)
    return next_path if next_path and is_for_operators == account.is_operator else "/"
