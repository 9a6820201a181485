"""What the database layer raises to those who know no SQLAlchemy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from psycopg.errors import UntranslatableCharacter
from sqlalchemy.exc import DataError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout


class DatabaseUnavailable(RuntimeError):
    """PostgreSQL cannot be reached, is too busy, or took too long: the same call may succeed later."""


class UnstorableText(ValueError):
    """A text has a NUL character, which PostgreSQL neither stores nor compares."""

    def __init__(self) -> None:
        super().__init__("text with a NUL character (U+0000) cannot be stored or looked up; remove it")


class UnknownCursor(ValueError):
    """A page was asked for beyond an id that is not in the list."""

    def __init__(self, field: str = "after") -> None:
        super().__init__(f"Invalid value for '{field}': it must be the id of an object in this list.")
        self.field = field


class UnusableDatabase(RuntimeError):
    """PostgreSQL answers, but this process must not work on what is there: the schema is of another version,
    or the role has too many or too few rights. Says the remedy; an operator has to act.
    """


@contextmanager
def unavailable_when_unreachable() -> Iterator[None]:
    """Turn the driver's words for "not now" into DatabaseUnavailable, and those for a NUL character into
    UnstorableText; other errors of queries pass as they are.
    """
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeout) as error:
        reason = str(getattr(error, "orig", None) or error).partition("\n")[0]
        raise DatabaseUnavailable(f"database unavailable: {reason}") from error
    except DataError as error:
        if isinstance(error.orig, UntranslatableCharacter) or "NUL (0x00)" in str(error.orig):
            raise UnstorableText from error
        raise
