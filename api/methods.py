"""Finds the methods of a path, for `Allow`, also where a path with a parameter would match the same URL."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import BaseRoute, Route, compile_path

from api.edge import METHODS


@dataclass(frozen=True, slots=True)
class _Path:
    """A path of the application, with all methods that its routes allow."""

    pattern: re.Pattern[str]
    template: str
    methods: frozenset[str]

    @property
    def num_parameters(self) -> int:
        return self.template.count("{")

    @property
    def example(self) -> str:
        """A URL that it matches."""
        return re.sub(r"\{.*?\}", "x", self.template)


class Methods:
    """Knows the methods of each path of an application, once all routes are added. Adds routes that refuse
    methods which a less specific path would match: `GET /invites/accept` must not look up an invitation
    `accept`.
    """

    def __init__(self, app: FastAPI, routes: Sequence[BaseRoute]) -> None:
        """`routes`: the application's, also those within its table."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for route in iter_route_contexts(routes):
            if route.path is not None and route.methods:
                found[route.path].update(route.methods)
        allowed = tuple((template, frozenset(methods)) for template, methods in found.items())
        self._paths, refusals = _sorted_out(allowed)
        app.router.routes[:0] = refusals

    def of(self, url_path: str) -> list[str]:
        """Returns the methods of the most specific path that matches."""
        for path in self._paths:
            if path.pattern.match(url_path):
                return [method for method in METHODS if method in path.methods]
        return []


@functools.lru_cache(maxsize=8)
def _sorted_out(allowed: tuple[tuple[str, frozenset[str]], ...]) -> tuple[list[_Path], list[Route]]:
    """Returns the paths, the most specific first, and the routes that refuse. All applications of a process
    have the same, and comparing each with each takes a while.
    """
    paths = [_Path(compile_path(template)[0], template, methods) for template, methods in allowed]
    paths.sort(key=lambda path: path.num_parameters)
    refusals = []
    for path in paths:
        example, num_parameters = path.example, path.num_parameters
        for other in paths:
            shadows = other.num_parameters > num_parameters and other.pattern.match(example)
            if shadows and (missing := other.methods - path.methods):
                refusals.append(Route(path.template, _refuse, methods=[*missing], include_in_schema=False))
    return paths, refusals


async def _refuse(request: Request) -> None:
    raise HTTPException(405)
