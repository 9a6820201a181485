"""What the database layer raises to those who know no SQLAlchemy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout


class DatabaseUnavailable(RuntimeError):
    """PostgreSQL cannot be reached, is too busy, or took too long: the same call may succeed later."""


@contextmanager
def unavailable_when_unreachable() -> Iterator[None]:
    """Turn the driver's words for "not now" into DatabaseUnavailable; errors of queries pass as they are."""
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeout) as error:
        reason = str(getattr(error, "orig", None) or error).partition("\n")[0]
        raise DatabaseUnavailable(f"database unavailable: {reason}") from error
