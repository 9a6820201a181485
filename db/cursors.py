"""Pages of a list by cursor: the rows beyond the one whose id a client gives as `after`.

A cursor that is not the id of a row of the list is refused: malformed, unknown, of another list and of
another tenant alike. Rows that a filter leaves out, or that were deleted, are still places to go on from:
clients delete the rows of a page before they ask for the next.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Result, Select
from sqlalchemy.ext.asyncio import AsyncSession

from db.errors import UnknownCursor


async def page_beyond(
    session: AsyncSession,
    listed: Select[Any],
    column: Any,
    *filters: ColumnElement[bool],
    after: Any,
    limit: int,
    newest_first: bool,
    deleted: Select[Any] | None = None,
) -> Result[*tuple[Any, ...]]:
    """At most `limit` rows of `listed` that match `filters`, beyond the row whose `column` is `after`, in the
    order of `column`: ids sort as the rows were made. `deleted` selects the ids of rows that the list had and
    the table has no more. Raises UnknownCursor.
    """
    query = listed.where(*filters)
    if after is not None:
        await require_cursor(session, listed, column, after, deleted)
        query = query.where(column < after if newest_first else column > after)
    return await session.execute(query.order_by(column.desc() if newest_first else column).limit(limit))


async def require_cursor(
    session: AsyncSession, listed: Select[Any], column: Any, after: Any, deleted: Select[Any] | None = None
) -> None:
    """Raises UnknownCursor when `after` is the `column` of no row of `listed`, nor one of `deleted`."""
    if isinstance(after, str) and "\x00" in after:
        raise UnknownCursor
    found = listed.with_only_columns(column, maintain_column_froms=True).where(column == after).limit(1)
    if (await session.execute(found)).first() is not None:
        return
    if deleted is not None:
        (deleted_id,) = deleted.selected_columns
        if (await session.execute(deleted.where(deleted_id == after).limit(1))).first() is not None:
            return
    raise UnknownCursor
