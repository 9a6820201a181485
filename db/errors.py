"""What the database layer raises to those who know no SQLAlchemy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout


class DatabaseUnavailable(RuntimeError):
    """PostgreSQL cannot be reached, or has no connection to spare: the same call may succeed later."""


@contextmanager
def unavailable_when_unreachable() -> Iterator[None]:
    """Turn the driver's many words for "not there" into DatabaseUnavailable; errors in the query pass as they
    are.
    """
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeout, OSError) as error:
        raise DatabaseUnavailable(f"database unavailable: {type(error).__name__}") from error
