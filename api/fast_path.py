"""Bypasses FastAPI's routing and dependencies for the most frequent requests.

The endpoints are the same functions as the routes', and errors look the same either way. The routes remain
for the OpenAPI document and for other methods on their paths.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from api.edge import AsgiApp, Receive, Scope, Send
from api.errors import ERROR_RESPONSES

Endpoint = Callable[[Request], Awaitable[Response]]
Show = Callable[[Request, Exception], Awaitable[Response]]

_KNOWN = tuple(ERROR_RESPONSES)


@dataclass(frozen=True, slots=True)
class FastRoute:
    """A route on the fast path; the edge labels metrics with its `path`."""

    path: str
    endpoint: Endpoint


class FastPath:
    """Wraps the framework's application.

    Args:
        app: handles all other requests, and is `request.app` of all.
        endpoints: endpoints of POST requests, by path.
        show: returns the response to an error.
    """

    def __init__(self, app: AsgiApp, endpoints: Mapping[str, Endpoint], show: Show) -> None:
        self._app = app
        self._routes = {path: FastRoute(path, endpoint) for path, endpoint in endpoints.items()}
        self._show = show

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get(scope["path"]) if scope["type"] == "http" else None
        # Requests with a query string go to the framework, where a dependency refuses it.
        if route is None or scope["method"] != "POST" or scope["query_string"]:
            await self._app(scope, receive, send)
            return
        scope["app"] = self._app
        scope["route"] = route
        request = Request(scope, receive, send)
        try:
            response = await route.endpoint(request)
        except _KNOWN as error:  # the edge handles all others
            response = await self._show(request, error)
        await response(scope, receive, send)
