"""The web console as a mountable ASGI app: routing, sign-in, sign-out, errors.

Owns: which page needs a signed-in user, the order of checks on a form, what a visitor is told when one fails.
Refuses to know: SQL, how passwords are verified, and what the pages show (`admin.pages`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from admin import security
from admin.forms import read_form
from admin.lockout import Lockout
from admin.pages.overview import OverviewPage
from admin.sessions import Opened, SessionStore
from tenants.accounts import UserAccounts

_HERE = Path(__file__).parent
_WRONG = "That email and password do not match an account."
_EXPIRED = "This form had expired. Please try again."
_NEEDS_HTTPS = (
    "The console signs people in over HTTPS only, or over plain HTTP on this machine (http://127.0.0.1 or "
    "http://localhost). Put a TLS proxy that sets X-Forwarded-Proto in front of the service."
)
_TITLES = {400: "Not understood", 403: "Not allowed", 404: "Nothing here", 405: "Not allowed"}


@dataclass(frozen=True)
class ConsoleServices:
    """What the console calls. Built by the API process."""

    redis: Redis
    accounts: UserAccounts
    overview: OverviewPage


def create_console(services: ConsoleServices) -> ASGIApp:
    """The console, to be mounted under a prefix such as `/console`."""
    console = _Console(services)
    app = Starlette(
        routes=[
            Route("/", console.overview, methods=["GET"]),
            Route("/sign-in", console.sign_in_form, methods=["GET"]),
            Route("/sign-in", console.sign_in, methods=["POST"]),
            Route("/sign-out", console.sign_out, methods=["POST"]),
            Mount("/static", _Static(directory=_HERE / "static")),
        ],
        exception_handlers={HTTPException: console.refused},
    )
    return security.SecurityHeaders(app)


class _Static(StaticFiles):
    """Pages name files with their content's hash, so that browsers may keep them."""

    def file_response(self, *args: object, **kwargs: object) -> Response:
        response = super().file_response(*args, **kwargs)  # type: ignore[arg-type]
        response.headers["Cache-Control"] = "public, max-age=86400"
        return response


class _Console:
    def __init__(self, services: ConsoleServices) -> None:
        self._services = services
        self._sessions = SessionStore(services.redis)
        self._lockout = Lockout(services.redis)
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            auto_reload=False,
        )
        self._templates.globals["version"] = _fingerprint(_HERE / "static")

    def _page(self, request: Request, template: str, status: int = 200, **context: object) -> HTMLResponse:
        root = request.scope.get("root_path", "")
        return HTMLResponse(
            self._templates.get_template(template).render(root=root, **context), status_code=status
        )

    async def refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        title = _TITLES.get(error.status_code, "This did not work")
        return self._page(request, "notice.html", error.status_code, title=title, text=error.detail)

    async def overview(self, request: Request) -> Response:
        opened = await self._signed_in(request)
        if opened is None:
            return self._to(request, "/sign-in")
        session = opened.session
        assert session.user_id is not None
        assert session.tenant_id is not None
        account = await self._services.accounts.find(session.user_id, session.tenant_id)
        if account is None:  # removed since: the session must not outlive its user
            await self._sessions.end(opened.id)
            return self._to(request, "/sign-in")
        shown = await self._services.overview.gather(account.tenant_id)
        response = self._page(
            request, "overview.html", account=account, csrf_token=session.csrf_token, page=shown
        )
        if opened.fresh:
            security.set_session(request, response, opened.id)
        return response

    async def sign_in_form(self, request: Request) -> Response:
        self._require_private(request)
        opened = await self._sessions.find(security.session_id(request))
        if opened is not None and opened.session.user_id is not None:
            return self._to(request, "/")
        return await self._form(request, opened)

    async def sign_in(self, request: Request) -> Response:
        self._require_private(request)
        form = await read_form(request)
        opened = await self._sessions.find(security.session_id(request))
        if not security.is_same_origin(request):
            raise HTTPException(403, "This form was sent from another site.")
        email, password = form.get("email", ""), form.get("password", "")
        if opened is None or not opened.session.accepts(form.get("csrf_token", "")):
            return await self._form(request, None, email, _EXPIRED, 403)
        address = request.client.host if request.client else "unknown"
        wait_s = await self._lockout.attempt(email, address)
        if wait_s:
            minutes = -(-wait_s // 60)
            problem = f"Too many attempts. Try again in {minutes} minute{'s' if minutes > 1 else ''}."
            response = await self._form(request, opened, email, problem, 429)
            response.headers["Retry-After"] = str(wait_s)
            return response
        account = await self._services.accounts.authenticate(email, password)
        if account is None:
            return await self._form(request, opened, email, _WRONG, 401)
        await self._lockout.succeeded(email, address)
        entered = await self._sessions.sign_in(opened.id, account.user_id, account.tenant_id)
        response = self._to(request, "/")
        security.set_session(request, response, entered.id)
        return response

    async def sign_out(self, request: Request) -> Response:
        form = await read_form(request)
        opened = await self._sessions.find(security.session_id(request))
        if opened is not None:
            if not security.is_same_origin(request) or not opened.session.accepts(form.get("csrf_token", "")):
                raise HTTPException(403, _EXPIRED)
            for session_id in {
                opened.id,
                security.session_id(request) or opened.id,
            }:  # one rotated just now is two
                await self._sessions.end(session_id)
        response = self._to(request, "/sign-in")
        security.clear_session(request, response)
        return response

    async def _form(
        self, request: Request, opened: Opened | None, email: str = "", problem: str = "", status: int = 200
    ) -> Response:
        opened = opened or await self._sessions.begin()
        token = opened.session.csrf_token
        response = self._page(
            request, "sign_in.html", status, csrf_token=token, email=email[:254], problem=problem
        )
        if opened.fresh:
            security.set_session(request, response, opened.id)
        return response

    async def _signed_in(self, request: Request) -> Opened | None:
        self._require_private(request)
        opened = await self._sessions.find(security.session_id(request))
        return opened if opened is not None and opened.session.user_id is not None else None

    @staticmethod
    def _require_private(request: Request) -> None:
        if not security.is_private_connection(request):
            raise HTTPException(403, _NEEDS_HTTPS)

    @staticmethod
    def _to(request: Request, path: str) -> RedirectResponse:
        return RedirectResponse(quote(request.scope.get("root_path", "")) + path, status_code=303)


def _fingerprint(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
