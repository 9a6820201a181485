"""Lets all engines of SQLAlchemy in a process of tests know what the first of them found out.

Each test opens engines of its own. Each of those would ask the server what it is, and turn the same
statements into SQL again: a tenth of the CPU of all tests with a database.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
from sqlalchemy import Connection, Engine
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg, PGDialectAsync_psycopg
from sqlalchemy.util import LRUCache

from tests.support.connections import connect

_compiled: LRUCache[Any, Any] = LRUCache(1500)


class OneDialect(PGDialectAsync_psycopg):
    """One for all engines with the same options: compiled statements are found by their dialect."""

    supports_statement_cache = True
    _made: ClassVar[dict[frozenset[Any], OneDialect]] = {}
    _dbapi: ClassVar[Any] = None
    _asked = False

    def __new__(cls, **options: Any) -> OneDialect:
        return cls._made.setdefault(frozenset(options.items()), super().__new__(cls))

    def __init__(self, **options: Any) -> None:
        if "dbapi" not in self.__dict__:
            super().__init__(**options)

    @classmethod
    def import_dbapi(cls) -> Any:
        cls._dbapi = cls._dbapi or super().import_dbapi()
        return cls._dbapi

    def initialize(self, connection: Connection) -> None:
        if not self._asked:
            super().initialize(connection)
            self._asked = True

    def connect(self, *arguments: Any, **options: Any) -> Any:
        return super().connect(*arguments, async_creator_fn=connect, **options)

    @classmethod
    def engine_created(cls, engine: Engine) -> None:
        engine._compiled_cache = _compiled


@contextmanager
def engines_that_share() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PGDialect_psycopg, "get_async_dialect_cls", lambda url: OneDialect)
        yield
