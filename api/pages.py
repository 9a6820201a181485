"""Lists in pages, as OpenAI has them: `after`, `limit`, `order`; `first_id`, `last_id`, `has_more`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Depends, Query

from api.errors import UnsupportedParameter

MAX_LIMIT = 100


@dataclass(frozen=True, slots=True)
class PageQuery:
    """Which page is asked for."""

    after: str | None
    """The last id of the page before."""
    limit: int
    newest_first: bool


def _query(
    after: Annotated[str | None, Query(pattern=r"^[!-~]{1,100}$")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 20,
    order: Literal["asc", "desc"] = "desc",
) -> PageQuery:
    return PageQuery(after, limit, order == "desc")


Paged = Annotated[PageQuery, Depends(_query)]
"""A route's parameter: the three of the query string."""

PAGE_PARAMETERS = frozenset({"after", "limit", "order"})


def page(objects: Sequence[dict[str, Any]], limit: int) -> dict[str, Any]:
    """A page of at most `limit`; one object more says that there are more."""
    shown = objects[:limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(objects) > limit,
    }


def refuse_unknown(given: Sequence[str], known: frozenset[str]) -> None:
    """Raises UnsupportedParameter for a parameter of the query string that nobody would look at."""
    for name in given:
        if name not in known:
            raise UnsupportedParameter(f"Unsupported parameter: '{name[:200]}'.", name[:200])
