"""A short way to the endpoints that answer most requests, past the framework's routing and its dependencies.

Owns nothing but the shortcut: the endpoints are the very functions that the routes have, and errors look the
same either way. The routes stay where they are, for the OpenAPI document and for other verbs on their paths.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from api.edge import AsgiApp, Receive, Scope, Send
from api.errors import FACES

Endpoint = Callable[[Request], Awaitable[Response]]
Show = Callable[[Request, Exception], Awaitable[Response]]

_KNOWN = tuple(FACES)


@dataclass(frozen=True, slots=True)
class DirectRoute:
    """What the edge counts requests under."""

    path: str
    endpoint: Endpoint


class Direct:
    """Wraps the framework's application.

    Args:
        app: takes everything else, and is `request.app` of all requests.
        endpoints: by path, for POST.
        show: what becomes of an error.
    """

    def __init__(self, app: AsgiApp, endpoints: Mapping[str, Endpoint], show: Show) -> None:
        self._app = app
        self._routes = {path: DirectRoute(path, endpoint) for path, endpoint in endpoints.items()}
        self._show = show

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get(scope["path"]) if scope["type"] == "http" else None
        # What comes with a query string is the framework's: it has a dependency that refuses it.
        if route is None or scope["method"] != "POST" or scope["query_string"]:
            await self._app(scope, receive, send)
            return
        scope["app"] = self._app
        scope["route"] = route
        request = Request(scope, receive, send)
        try:
            response = await route.endpoint(request)
        except _KNOWN as error:  # any other is the edge's
            response = await self._show(request, error)
        await response(scope, receive, send)
