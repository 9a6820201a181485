"""Lists in pages, as OpenAI has them: `after`, `limit`, `order`; `first_id`, `last_id`, `has_more`."""

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
    """Which page is asked for."""

    after: str | None
    """The last id of the page before."""
    limit: int
    newest_first: bool


Cursor = Annotated[
    str | None,
    Query(
        description="The id of an object in the list: the page continues from it.",
        json_schema_extra={"minLength": 1},
    ),
]
"""The id of an object in the list. Which ones those are the list knows: it refuses all others alike, those of
the wrong form too.
"""


Month = Annotated[
    str | None,
    Query(
        description="A month in UTC, such as `2026-11`; the current one when left out.",
        json_schema_extra={"pattern": "^20[0-9]{2}-(0[1-9]|1[0-2])$"},
    ),
]


Order = Annotated[Literal["asc", "desc"], Query(description="`desc`: the newest first.")]


def _query(
    after: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="The largest number of objects.")] = 20,
    order: Order = "desc",
) -> PageQuery:
    return PageQuery(after, limit, order == "desc")


Paged = Annotated[PageQuery, Depends(_query)]
"""A route's parameter: the three of the query string."""


def position(ids: Sequence[str], after: str | None, field: str = "after") -> int | None:
    """Where `after` stands in the whole list of ids; None without one. Raises UnknownCursor."""
    if after is None:
        return None
    try:
        return ids.index(after)
    except ValueError:
        raise UnknownCursor(field) from None


def page(objects: Sequence[ObjectT], limit: int, has_more: bool | None = None) -> Page[ObjectT]:
    """A page of at most `limit`. Unless `has_more` is given, one object more says that there are more."""
    shown = list(objects[:limit])
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(objects) > limit if has_more is None else has_more,
    }


async def known_query(request: Request) -> None:
    """A dependency of every route with a key: raises UnsupportedParameter for a parameter of the query string
    that the route does not declare. Of a repeated one, the brackets of the stock client may be left out.
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
    """Raises UnsupportedParameter for a parameter of the query string that nobody would look at."""
    for name in given:
        if name not in known:
            raise UnsupportedParameter(f"Unsupported parameter: '{name[:200]}'.", name[:200])
