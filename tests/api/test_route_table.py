"""The table of routes finds what asking one route after the other finds."""

from __future__ import annotations

import re

import pytest
from fastapi import APIRouter
from fastapi.routing import RouteContext, iter_route_contexts
from starlette.routing import Match

from api.app import _all_routes, _route_table
from api.edge import METHODS
from api.route_table import RouteTable

CONTEXTS = tuple(iter_route_contexts(_all_routes().routes))
VALUES = ("x", "a/b", "accept", "1", "")


def one_after_the_other(path: str, method: str) -> tuple[Match, RouteContext | None]:
    matching = [context for context in CONTEXTS if context.path_regex.match(path)]
    full = [context for context in matching if method in (context.methods or ())]
    if full:
        return Match.FULL, full[0]
    return (Match.PARTIAL, matching[0]) if matching else (Match.NONE, None)


def test_every_route_is_found_by_every_path_that_may_be_its() -> None:
    table = _route_table()
    paths = {re.sub(r"\{.*?\}", value, str(one.path)) for one in CONTEXTS for value in VALUES}
    paths |= {f"{path}{end}" for path in paths for end in ("/", "/x")} | {"", "/", "//", "/none"}
    found = set()
    for path in paths:
        for method in METHODS:
            match, selected = table.matches({"type": "http", "path": path, "method": method})
            expected, context = one_after_the_other(path, method)
            assert match == expected, (method, path)
            if context is not None:
                assert selected["route"] is context.original_route, (method, path)
                assert selected["endpoint"] is context.endpoint
                assert selected["path_params"] == context.path_regex.match(path).groupdict()
            if match == Match.FULL:
                found.add(id(context))
    assert len(found) == len(CONTEXTS) > 150


@pytest.mark.parametrize(("path", "first"), [("/v1/a/b", "one"), ("/v1/x/b", "two"), ("/v1/a/c", "one")])
def test_the_first_of_several_is_taken(path: str, first: str) -> None:
    routes = APIRouter()

    @routes.get("/v1/a/{rest:path}")
    def one() -> None: ...

    @routes.get("/v1/{some}/b")
    def two() -> None: ...

    @routes.get("/v1/a/c")
    def three() -> None: ...

    _, selected = RouteTable(routes.routes).matches({"type": "http", "path": path, "method": "GET"})
    assert selected["endpoint"].__name__ == first
