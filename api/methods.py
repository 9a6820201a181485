"""Finds the methods of a path, for `Allow`, also where a path with a parameter would match the same URL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Route, compile_path

from api.edge import METHODS


@dataclass(frozen=True, slots=True)
class _Path:
    """A path of the application, with all methods that its routes allow."""

    template: str
    pattern: re.Pattern[str]
    num_parameters: int
    example: str
    """A URL that it matches."""
    methods: set[str]

    @classmethod
    def of(cls, template: str) -> _Path:
        pattern, example = compile_path(template)[0], re.sub(r"\{.*?\}", "x", template)
        return cls(template, pattern, template.count("{"), example, set())

    def shadows(self, other: _Path) -> bool:
        """Returns whether this path also matches URLs of `other`, which is more specific."""
        return self.num_parameters > other.num_parameters and self.pattern.match(other.example) is not None


class Methods:
    """Knows the methods of each path of an application, once all routes are added. Adds routes that refuse
    methods which a less specific path would match: `GET /invites/accept` must not look up an invitation
    `accept`.
    """

    def __init__(self, app: FastAPI) -> None:
        found: dict[str, _Path] = {}
        for route in iter_route_contexts(app.routes):
            if route.path is not None and route.methods:
                path = found.get(route.path) or found.setdefault(route.path, _Path.of(route.path))
                path.methods.update(route.methods)
        self._paths = sorted(found.values(), key=lambda path: path.num_parameters)
        app.router.routes[:0] = self._refusals()

    def of(self, url_path: str) -> list[str]:
        """Returns the methods of the most specific path that matches."""
        for path in self._paths:
            if path.pattern.match(url_path):
                return [method for method in METHODS if method in path.methods]
        return []

    def _refusals(self) -> Iterator[Route]:
        for path in self._paths:
            for other in self._paths:
                if other.shadows(path) and (missing := other.methods - path.methods):
                    yield Route(path.template, _refuse, methods=[*missing], include_in_schema=False)


async def _refuse(request: Request) -> None:
    raise HTTPException(405)
