"""Defines the database layer's exceptions, so that callers need no SQLAlchemy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg.errors import IdleInTransactionSessionTimeout, UntranslatableCharacter
from sqlalchemy.exc import DataError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

_OF_THE_DRIVER = (psycopg.OperationalError, psycopg.InterfaceError)
"""As they are raised where a transaction starts, which SQLAlchemy does not take part in."""


class DatabaseUnavailable(RuntimeError):
    """PostgreSQL cannot be reached, is overloaded, or took too long: a retry may succeed."""


class UnstorableText(ValueError):
    """The text contains a NUL character, which PostgreSQL neither stores nor compares."""

    def __init__(self) -> None:
        super().__init__("text with a NUL character (U+0000) cannot be stored or looked up; remove it")


class UnknownCursor(ValueError):
    """The cursor of a page is not the id of an object in the list."""

    def __init__(self, field: str = "after") -> None:
        super().__init__(f"Invalid value for '{field}': it must be the id of an object in this list.")
        self.field = field


class UnusableDatabase(RuntimeError):
    """PostgreSQL answers, but this process must not use the database: the schema has another version, or the
    role has too many or too few rights. The message names the remedy; an operator has to act.
    """


@contextmanager
def translated_errors() -> Iterator[None]:
    """Turns the driver's errors for an unreachable server into DatabaseUnavailable, and those for a NUL
    character into UnstorableText; other query errors pass unchanged.
    """
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeout, *_OF_THE_DRIVER) as error:
        raise _unavailable(error) from error
    except InternalError as error:
        if isinstance(error.orig, IdleInTransactionSessionTimeout):
            raise _unavailable(error) from error
        raise
    except DataError as error:
        if isinstance(error.orig, UntranslatableCharacter) or "NUL (0x00)" in str(error.orig):
            raise UnstorableText from error
        raise


def _unavailable(error: Exception) -> DatabaseUnavailable:
    reason = str(getattr(error, "orig", None) or error).partition("\n")[0]
    return DatabaseUnavailable(f"database unavailable: {reason}")
