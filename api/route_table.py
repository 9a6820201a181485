"""Finds the route of a request by the fixed start of its path.

FastAPI asks each included router, and each of those asks each of its routes: with some two hundred routes
that takes a seventh of the CPU of a request. The routes, their order and their handlers stay FastAPI's.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from fastapi.routing import RouteContext, iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, get_route_path
from starlette.types import ASGIApp, Receive, Scope, Send

_SELECTED = "rootstock.route"
"""The key of the request's scope that holds the route that matched."""
_SLASH = re.compile("/")
_PLACE = attrgetter("place")


@dataclass(frozen=True, slots=True)
class _Entry:
    place: int
    """Among all routes: the first that matches is taken."""
    route: BaseRoute
    pattern: re.Pattern[str]
    convert: Mapping[str, Callable[[str], Any]]
    """By path parameter."""
    methods: frozenset[str]
    app: ASGIApp
    endpoint: Callable[..., Any] | None


class RouteTable(BaseRoute):
    """All routes of an application as one route.

    Args:
        routes: those of a FastAPI router, which must not change afterwards.
    """

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        found: defaultdict[str, list[_Entry]] = defaultdict(list)
        for place, context in enumerate(iter_route_contexts(routes)):
            found[_fixed_start(context.path_format or "")].append(_entry(place, context))
        self._by_start = dict(found)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http":
            return Match.NONE, {}
        path = get_route_path(scope)
        partial: tuple[Match, Scope] = (Match.NONE, {})
        for entry in self._candidates(path):
            found = entry.pattern.match(path)
            if found is None:
                continue
            values = {name: entry.convert[name](value) for name, value in found.groupdict().items()}
            selected = {
                "endpoint": entry.endpoint,
                "path_params": {**scope.get("path_params", {}), **values},
                "route": entry.route,
                _SELECTED: entry,
            }
            if scope["method"] in entry.methods:
                return Match.FULL, selected
            if partial[0] == Match.NONE:
                partial = (Match.PARTIAL, selected)
        return partial

    def _candidates(self, path: str) -> list[_Entry]:
        """Returns the routes that can match the path, in their order."""
        starts = {path, *(path[: slash.end()] for slash in _SLASH.finditer(path))}
        return sorted((one for start in starts for one in self._by_start.get(start, ())), key=_PLACE)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        entry: _Entry = scope[_SELECTED]
        if scope["method"] not in entry.methods:
            raise HTTPException(405)
        await entry.app(scope, receive, send)


def _fixed_start(path: str) -> str:
    """Returns the path up to the slash before its first parameter, or all of it if it has none."""
    fixed, parameter, _ = path.partition("{")
    return fixed[: fixed.rindex("/") + 1] if parameter else path


def _entry(place: int, context: RouteContext) -> _Entry:
    convert = {name: convertor.convert for name, convertor in context.param_convertors.items()}
    methods = frozenset(context.methods or ())
    return _Entry(
        place, context.original_route, context.path_regex, convert, methods, context.app, context.endpoint
    )
