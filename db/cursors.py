"""Fetches pages of a list by cursor: the rows beyond the id that a client passes as `after`.

A cursor is rejected unless it is the id of a row in the list: malformed, unknown, of another list or of
another tenant alike. Rows that a filter hides or that were deleted are still valid cursors: clients delete
the rows of a page before they request the next.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Result, Select
from sqlalchemy.ext.asyncio import AsyncSession

from db.errors import UnknownCursor


async def fetch_page(
    session: AsyncSession,
    listed: Select[Any],
    column: Any,
    *filters: ColumnElement[bool],
    after: Any,
    limit: int,
    newest_first: bool,
    deleted: Select[Any] | None = None,
) -> Result[*tuple[Any, ...]]:
    """Returns at most `limit` rows of `listed` that match `filters`, beyond the row whose `column` is
    `after`, ordered by `column`: ids sort by creation time. `deleted` selects the ids of rows that were in
    the list and are no longer in the table. Raises UnknownCursor.
    """
    query = listed.where(*filters)
    if after is not None:
        await require_cursor(session, listed, column, after, deleted)
        query = query.where(column < after if newest_first else column > after)
    return await session.execute(query.order_by(column.desc() if newest_first else column).limit(limit))


async def require_cursor(
    session: AsyncSession, listed: Select[Any], column: Any, after: Any, deleted: Select[Any] | None = None
) -> None:
    """Raises UnknownCursor if `after` is neither the `column` of a row of `listed` nor one of `deleted`."""
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
