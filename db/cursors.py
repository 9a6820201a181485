"""Fetches pages of a list by cursor: the rows beyond the id that a client passes as `after`.

A cursor is rejected unless it is the id of a row in the list: malformed, unknown, of another list or of
another tenant alike. Rows hidden by a filter or soft-deleted are still valid cursors.
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
) -> Result[*tuple[Any, ...]]:
    """Returns at most `limit` rows of `listed` that match `filters`, beyond the row whose `column` is
    `after`, ordered by `column`: ids sort by creation time. Raises UnknownCursor.
    """
    query = listed.where(*filters)
    if after is not None:
        await require_cursor(session, listed, column, after)
        query = query.where(column < after if newest_first else column > after)
    return await session.execute(query.order_by(column.desc() if newest_first else column).limit(limit))


async def require_cursor(session: AsyncSession, listed: Select[Any], column: Any, after: Any) -> None:
    """Raises UnknownCursor if no row of `listed` has `after` as its `column`."""
    if isinstance(after, str) and "\x00" in after:
        raise UnknownCursor
    found = listed.with_only_columns(column, maintain_column_froms=True).where(column == after).limit(1)
    if (await session.execute(found)).first() is None:
        raise UnknownCursor
