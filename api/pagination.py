"""Implements OpenAI's pagination: parameters `after`, `limit`, `order`; fields `first_id`, `last_id`,
`has_more`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypedDict, TypeVar

from fastapi import Depends, Query, Request
from fastapi.dependencies.models import Dependant

from api.errors import UnsupportedParameter
from db.errors import UnknownCursor

MAX_LIMIT = 100

ObjectT = TypeVar("ObjectT", bound=Mapping[str, Any])


class Page(TypedDict, Generic[ObjectT]):
    """A page of a list."""

    object: Literal["list"]
    data: list[ObjectT]
    first_id: str | None
    """The id of the first object of this page; null when it is empty."""
    last_id: str | None
    """The id of the last object of this page: `after` of the next page."""
    has_more: bool
    """Whether there is another page."""


@dataclass(frozen=True, slots=True)
class PageQuery:
    """The requested page."""

    after: str | None
    """Id of the last object of the previous page."""
    limit: int
    newest_first: bool


Cursor = Annotated[
    str | None,
    Query(
        description="The id of an object in the list: the page continues from it.",
        json_schema_extra={"minLength": 1},
    ),
]
"""The id of an object in the list. The list refuses all other ids alike, malformed ones included."""


Month = Annotated[
    str | None,
    Query(
        description="A month in UTC, such as `2026-11`; the current one when left out.",
        json_schema_extra={"pattern": "^20[0-9]{2}-(0[1-9]|1[0-2])$"},
    ),
]


Order = Annotated[Literal["asc", "desc"], Query(description="`desc`: the newest first.")]


async def _query(
    after: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="The largest number of objects.")] = 20,
    order: Order = "desc",
) -> PageQuery:
    # `async`, though it awaits nothing: FastAPI calls others in another thread, at each request.
    return PageQuery(after, limit, order == "desc")


Paged = Annotated[PageQuery, Depends(_query)]
"""Type of a route's parameter with `after`, `limit` and `order`."""


def position(ids: Sequence[str], after: str | None, field: str = "after") -> int | None:
    """Returns the index of `after` in the whole list of ids; None without one. Raises UnknownCursor."""
    if after is None:
        return None
    try:
        return ids.index(after)
    except ValueError:
        raise UnknownCursor(field) from None


def page(objects: Sequence[ObjectT], limit: int, has_more: bool | None = None) -> Page[ObjectT]:
    """Returns a page of at most `limit` objects. Unless `has_more` is given, `objects` has one more if there
    are more.
    """
    shown = list(objects[:limit])
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(objects) > limit if has_more is None else has_more,
    }


async def known_query(request: Request) -> None:
    """Checks the query string, as a dependency of every route with a key: raises UnsupportedParameter for
    parameters that the route does not declare. Repeated parameters can omit the brackets that OpenAI's client
    adds.
    """
    if not request.scope["query_string"]:
        return
    declared = [*_declared(request.scope["route"].dependant)]
    bare = [name.removesuffix("[]") for name in declared]
    refuse_unknown(list(request.query_params), frozenset(declared + bare))


def _declared(dependant: Dependant) -> Iterator[str]:
    for field in dependant.query_params:
        yield field.alias
    for inner in dependant.dependencies:
        yield from _declared(inner)


def refuse_unknown(given: Sequence[str], known: frozenset[str]) -> None:
    """Raises UnsupportedParameter for a query parameter that is not in `known`."""
    for name in given:
        if name not in known:
            raise UnsupportedParameter(f"Unsupported parameter: '{name[:200]}'.", name[:200])
