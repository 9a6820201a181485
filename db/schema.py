"""The schema's version: bring a database to it, and refuse to work on any other.

Knows Alembic and no table.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, make_url, pool

from db import roles

if TYPE_CHECKING:
    from db.session import Database

ALEMBIC_INI = Path(__file__).resolve().parents[1] / "migrations" / "alembic.ini"


class SchemaMismatch(RuntimeError):
    """The database is at another revision than this code was written for."""

    def __init__(self, found: str | None, expected: str | None) -> None:
        super().__init__(
            f"database schema is at {found or 'no revision'}, this code needs {expected}: "
            "run `rootstock migrate`"
        )
        self.found = found
        self.expected = expected


def upgrade(url: str, serving_url: str | None = None) -> None:
    """Migrate the database at `url`, the owner's, to this code's revision. Blocking; safe to run from several
    machines at once.

    Args:
        serving_url: whose role is granted what serving needs. Raises `db.roles.RoleMissing`.
    """
    _run(url, lambda config: command.upgrade(config, "head"))
    role = make_url(serving_url).username if serving_url is not None else None
    if role is not None:
        engine = create_engine(url, poolclass=pool.NullPool)
        try:
            with engine.begin() as connection:
                roles.grant(connection, role)
        finally:
            engine.dispose()


def downgrade(url: str, revision: str) -> None:
    """Migrate back. Loses what later revisions added."""
    _run(url, lambda config: command.downgrade(config, revision))


def expected_revision() -> str | None:
    return ScriptDirectory.from_config(Config(ALEMBIC_INI)).get_current_head()


async def assert_fit_to_serve(database: Database) -> None:
    """Raise SchemaMismatch unless the database is at this code's revision, `db.roles.RoleTooMighty` where
    row-level security would not hold us. Every process's first queries.
    """
    await roles.assert_confined(database)
    async with database.engine.connect() as connection:
        found = await connection.run_sync(_current_revision)
    expected = expected_revision()
    if found != expected:
        raise SchemaMismatch(found, expected)


def _current_revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _run(url: str, act: Callable[[Config], None]) -> None:
    config = Config(ALEMBIC_INI)
    engine = create_engine(url, poolclass=pool.NullPool)
    try:
        with engine.connect() as connection:
            config.attributes["connection"] = connection
            act(config)
    finally:
        engine.dispose()
