"""The web console as a mountable ASGI app: its routes, sign-in and sign-out.

Owns: which routes there are, and how somebody gets in and out. Refuses to know: SQL, how passwords are
verified, and what the pages show (`admin.pages`).
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

from admin import security
from admin.adapter_routes import AdapterRoutes
from admin.billing_routes import BillingRoutes
from admin.forms import read_form
from admin.frame import EXPIRED, FOREIGN, HERE, Frame, Visitor
from admin.join_routes import JoinRoutes
from admin.key_routes import KeyRoutes
from admin.lockout import Lockout
from admin.member_routes import MemberRoutes
from admin.operator.routes import operator_routes
from admin.playground_routes import PlaygroundRoutes
from admin.record_routes import RecordRoutes
from admin.services import AdapterServices, BillingServices, ConsoleServices, Explanations
from admin.sessions import Opened
from admin.upload_routes import UploadRoutes

__all__ = ["AdapterServices", "BillingServices", "ConsoleServices", "Explanations", "create_console"]

_WRONG = "That email and password do not match an account."


def create_console(services: ConsoleServices) -> ASGIApp:
    """The console, to be mounted under a prefix such as `/console`."""
    frame = Frame(services)
    console = _Console(services, frame)
    app = Starlette(
        routes=[
            Route("/", frame.serving(console.overview), methods=["GET"]),
            Route("/sign-in", console.sign_in_form, methods=["GET"]),
            Route("/sign-in", console.sign_in, methods=["POST"]),
            Route("/sign-out", console.sign_out, methods=["POST"]),
            *UploadRoutes(frame, services).routes(),
            *AdapterRoutes(frame, services).routes(),
            *KeyRoutes(frame, services).routes(),
            *MemberRoutes(frame, services).routes(),
            *PlaygroundRoutes(frame, services).routes(),
            *BillingRoutes(frame, services).routes(),
            *RecordRoutes(frame, services).routes(),
            *JoinRoutes(frame, services).routes(),
            *operator_routes(frame, services),
            Mount("/static", _Static(frame.version)),
        ],
        exception_handlers={HTTPException: frame.refused},
    )
    return security.SecurityHeaders(app)


class _Static(StaticFiles):
    """What a page names with the hash of all of it may be kept; what a script imports from beside it, by its
    name alone, is asked for again.
    """

    def __init__(self, version: str) -> None:
        super().__init__(directory=HERE / "static")
        self._query = f"v={version}".encode()

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        named = scope["query_string"] == self._query
        response.headers["Cache-Control"] = "public, max-age=86400" if named else "no-cache"
        return response


class _Console:
    def __init__(self, services: ConsoleServices, frame: Frame) -> None:
        self._services = services
        self._frame = frame
        self._sessions = frame.sessions
        self._lockout = Lockout(services.redis)

    async def overview(self, request: Request, visitor: Visitor) -> Response:
        shown = await self._services.overview.gather(visitor.tenant_id)
        return self._frame.page(request, "overview.html", visitor=visitor, section="overview", page=shown)

    async def sign_in_form(self, request: Request) -> Response:
        self._frame.require_private(request)
        opened = await self._sessions.find(security.session_id(request))
        if opened is not None and opened.session.user_id is not None:
            response: Response = self._frame.to(request, "/")
            if opened.fresh:
                security.set_session(request, response, opened.id)
            return response
        return await self._form(request, opened)

    async def sign_in(self, request: Request) -> Response:
        self._frame.require_private(request)
        form = await read_form(request)
        opened = await self._sessions.find(security.session_id(request))
        if not security.is_same_origin(request):
            raise HTTPException(403, FOREIGN)
        email, password = form.get("email", ""), form.get("password", "")
        if opened is None or not opened.session.accepts(form.get("csrf_token", "")):
            return await self._form(request, None, email, EXPIRED, 403)
        address = request.client.host if request.client else "unknown"
        wait_s = await self._lockout.attempt(email, address)
        if wait_s:
            minutes = -(-wait_s // 60)
            problem = f"Too many attempts. Try again in {minutes} minute{'s' if minutes > 1 else ''}."
            response = await self._form(request, opened, email, problem, 429)
            response.headers["Retry-After"] = str(wait_s)
            return response
        account = await self._services.accounts.authenticate(
            email, password, address=address, request_id=request.scope.get("state", {}).get("request_id")
        )
        if account is None:
            return await self._form(request, opened, email, _WRONG, 401)
        await self._lockout.succeeded(email, address)
        entered = await self._sessions.sign_in(opened.id, account.user_id, account.tenant_id)
        response = self._frame.to(request, "/")
        security.set_session(request, response, entered.id)
        return response

    async def sign_out(self, request: Request) -> Response:
        form = await read_form(request)
        opened = await self._sessions.find(security.session_id(request))
        if opened is not None:
            if not security.is_same_origin(request) or not opened.session.accepts(form.get("csrf_token", "")):
                raise HTTPException(403, EXPIRED)
            for session_id in {
                opened.id,
                security.session_id(request) or opened.id,
            }:  # one rotated just now is two
                await self._sessions.end(session_id)
        response = self._frame.to(request, "/sign-in")
        security.clear_session(request, response)
        response.headers["Clear-Site-Data"] = '"storage"'  # files that the upload page remembers
        return response

    async def _form(
        self, request: Request, opened: Opened | None, email: str = "", problem: str = "", status: int = 200
    ) -> Response:
        opened = opened or await self._sessions.begin()
        token = opened.session.csrf_token
        response = self._frame.page(
            request, "sign_in.html", status, csrf_token=token, email=email[:254], problem=problem
        )
        if opened.fresh:
            security.set_session(request, response, opened.id)
        return response
