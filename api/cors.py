"""Cross-origin requests of web pages (CORS): answers preflights, says what pages may read of a response.

A preflight carries no key, so every well-formed one for the API is granted: it gives away nothing and does
nothing. Whether a page may use a key is decided on the request itself, by the key's origins
(`api.authentication`); only then does the response have the headers that let the page read it. Cookies are
never allowed.
"""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send

Headers = list[tuple[bytes, bytes]]

_ORIGIN = re.compile(rb"[a-z][a-z0-9+.-]{0,30}://[A-Za-z0-9._\-:\[\]]{1,300}")
_METHOD = re.compile(rb"GET|HEAD|POST|PUT|PATCH|DELETE")
_NAMES = re.compile(rb"[A-Za-z0-9_-]{1,64}([ \t]*,[ \t]*[A-Za-z0-9_-]{1,64}){0,63}")
_MAX_AGE = b"7200"
"""Seconds for which browsers remember the answer; Chromium's longest."""
_EXPOSED = b", ".join(
    (
        *(b"x-request-id", b"x-should-retry", b"retry-after", b"retry-after-ms", b"x-rootstock-quota"),
        *(b"x-ratelimit-limit-requests", b"x-ratelimit-limit-tokens"),
        *(b"x-ratelimit-remaining-requests", b"x-ratelimit-remaining-tokens"),
        *(b"x-ratelimit-reset-requests", b"x-ratelimit-reset-tokens"),
        *(b"content-disposition", b"etag", b"idempotency-replayed"),
    )
)


def response_headers(origin: bytes) -> Headers:
    """Returns the headers that let pages of `origin` read a response."""
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", _EXPOSED),
        (b"vary", b"origin"),
    ]


class Preflights:
    """Wraps an ASGI application; answers OPTIONS requests of browsers below /v1 itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "OPTIONS" and scope["path"].startswith("/v1/"):
            granted = _granted(dict(scope["headers"]))
            if granted is not None:
                await send({"type": "http.response.start", "status": 204, "headers": granted})
                await send({"type": "http.response.body"})
                return
        await self._app(scope, receive, send)


def _granted(requested: dict[bytes, bytes]) -> Headers | None:
    """Returns the response's headers; None if this is not a well-formed preflight."""
    origin, method = requested.get(b"origin", b""), requested.get(b"access-control-request-method", b"")
    names = requested.get(b"access-control-request-headers")
    if not (_ORIGIN.fullmatch(origin) and _METHOD.fullmatch(method)):
        return None
    headers = [
        (b"access-control-allow-origin", origin),
        (b"access-control-allow-methods", method),
        (b"access-control-max-age", _MAX_AGE),
        (b"vary", b"origin, access-control-request-method, access-control-request-headers"),
    ]
    if names is not None:
        if _NAMES.fullmatch(names) is None:
            return None
        headers.append((b"access-control-allow-headers", names))
    return headers
