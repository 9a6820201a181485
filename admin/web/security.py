"""Sets security headers and session cookies, and checks connections and origins.

Session cookies are sent over HTTPS, or over plain HTTP on this machine.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "connect-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "font-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_SECURE_COOKIE = "__Host-rootstock"
_LOOPBACK_COOKIE = "rootstock_console"


class SecurityHeaders:
    """Pure ASGI: adds the headers to whatever the app inside answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
                headers["X-Content-Type-Options"] = "nosniff"
                headers["X-Frame-Options"] = "DENY"
                headers["Referrer-Policy"] = "same-origin"
                headers["Cross-Origin-Opener-Policy"] = "same-origin"
                headers["Permissions-Policy"] = "camera=(), geolocation=(), microphone=()"
                headers.setdefault("Cache-Control", "no-store")
                if scope["scheme"] == "https":
                    headers["Strict-Transport-Security"] = "max-age=31536000"
            await send(message)

        await self._app(scope, receive, send_secured)


def is_private_connection(request: Request) -> bool:
    """HTTPS, or plain HTTP that never leaves the visitor's machine: the browser's own rule for a secure
    context.

    The Host header is what the browser typed; a rebinding name is not a loopback name.
    """
    return request.url.scheme == "https" or (request.url.hostname or "") in _LOOPBACK


def session_id(request: Request) -> str | None:
    """The id the browser presents, from the cookie that this kind of connection may hold."""
    return request.cookies.get(_cookie_name(request))


def set_session(request: Request, response: Response, session_id: str) -> None:
    """Give the browser an id: never readable by scripts, never sent by other sites' forms, gone with the
    browser.
    """
    secure = request.url.scheme == "https"
    response.set_cookie(
        _cookie_name(request),
        session_id,
        path="/" if secure else request.scope.get("root_path", "") or "/",
        secure=secure,
        httponly=True,
        samesite="lax",
    )


def clear_session(request: Request, response: Response) -> None:
    """Make the browser forget its id."""
    secure = request.url.scheme == "https"
    response.delete_cookie(
        _cookie_name(request),
        path="/" if secure else request.scope.get("root_path", "") or "/",
        secure=secure,
        httponly=True,
        samesite="lax",
    )


def is_same_origin(request: Request) -> bool:
    """Whether a form was sent by a page of ours, as far as the browser says; the CSRF token has the last
    word.
    """
    fetch_site = request.headers.get("sec-fetch-site")
    if fetch_site is not None and fetch_site not in ("same-origin", "none"):
        return False
    origin = request.headers.get("origin")
    if origin is None:
        return True
    return urlsplit(origin).netloc == request.url.netloc


def _cookie_name(request: Request) -> str:
    # Browsers accept the `__Host-` prefix only with Secure, Path=/ and no Domain: no other host can plant it.
    return _SECURE_COOKIE if request.url.scheme == "https" else _LOOPBACK_COOKIE
