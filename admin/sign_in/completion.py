"""From somebody who has proved who they are to a session of theirs, whatever they proved it by.

Owns that whoever has a second factor is asked for it, that a sign-in goes on record, and that no sign-in goes
on with the id that the browser had before. Refuses to know passwords and providers.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from admin.services import ConsoleServices
from admin.web import security
from admin.web.console import Frame
from admin.web.request_info import address_of, request_id_of
from admin.web.sessions import HalfWay, Opened
from tenants.accounts import Account


class Entrance:
    """The one door."""

    def __init__(self, frame: Frame, services: ConsoleServices) -> None:
        self._frame = frame
        self._accounts = services.accounts

    async def enter(
        self,
        request: Request,
        opened: Opened | None,
        account: Account,
        by: str,
        proved_at: float,
        *,
        told: str = "",
    ) -> Response:
        """In, or on to the second factor. `opened`: the session they came with, which ends; `proved_at`: when
        the proving began.
        """
        if not account.has_second_factor:
            return await self.admit(request, opened, account, by, proved_at, told=told)
        half_way = HalfWay(account.user_id, account.tenant_id, by, proved_at)
        waiting = await self._frame.sessions.go_half_way(None if opened is None else opened.id, half_way)
        response = self._frame.to(request, "/sign-in/code")
        security.set_session(request, response, waiting.id)
        return response

    async def admit(
        self,
        request: Request,
        opened: Opened | None,
        account: Account,
        by: str,
        proved_at: float,
        *,
        told: str = "",
    ) -> Response:
        """In."""
        address = address_of(request)
        entered = await self._frame.sessions.sign_in(
            None if opened is None else opened.id,
            account.user_id,
            account.tenant_id,
            role=account.role,
            address=address,
            agent=request.headers.get("user-agent", ""),
            proved_at=proved_at,
        )
        await self._accounts.note_sign_in(account, by, address=address, request_id=request_id_of(request))
        if told:
            await self._frame.sessions.say(entered, told)
        response = self._frame.to(request, "/")
        security.set_session(request, response, entered.id)
        return response
