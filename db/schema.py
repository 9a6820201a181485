"""Migrates a database to this release's schema version, and rejects databases that this code cannot serve."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, make_url, pool
from sqlalchemy.exc import DBAPIError

from db import compatibility, roles
from db.errors import UnusableDatabase, translated_errors

if TYPE_CHECKING:
    from db.session import Database

ALEMBIC_INI = Path(__file__).resolve().parents[1] / "migrations" / "alembic.ini"


class SchemaMismatch(UnusableDatabase):
    """The database is at a revision that this code cannot serve."""

    def __init__(self, found: str | None, expected: str) -> None:
        super().__init__(
            f"the database schema is at {found or 'no revision'}, this release needs {expected}: "
            + _remedy(found, expected)
        )
        self.found = found
        self.expected = expected


class MigrationFailed(RuntimeError):
    """A migration failed; the schema stays at the last revision that was applied completely."""

    def __init__(self, found: str | None, expected: str, reason: str) -> None:
        super().__init__(
            f"migrating to {expected} failed, the schema stays at {found or 'no revision'}: {reason}"
        )
        self.found = found
        self.expected = expected


def upgrade(url: str, serving_url: str | None = None) -> None:
    """Migrates the database at `url`, with the owner's role, to this code's revision. Blocks; safe to run
    from several machines at once.

    Args:
        serving_url: URL whose role is granted what serving needs. Raises `db.roles.RoleMissing` before any
            migration runs.

    Raises SchemaMismatch when the database is at a revision unknown to this code, MigrationFailed when
    PostgreSQL rejects a statement.
    """
    role = make_url(serving_url).username if serving_url is not None else None
    with _connected(url) as (config, connection):
        config.attributes["serving_role"] = role
        before = _current_revision(connection)
        connection.commit()
        if before is not None and not _is_known(before):
            raise SchemaMismatch(before, expected_revision())
        try:
            command.upgrade(config, "head")
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            reason = str(error.orig).partition("\n")[0]
            raise MigrationFailed(_current_revision(connection), expected_revision(), reason) from error


def downgrade(url: str, revision: str) -> None:
    """Migrates back to `revision`. Loses the data of later revisions."""
    with _connected(url) as (config, _):
        command.downgrade(config, revision)


def expected_revision() -> str:
    head = _scripts().get_current_head()
    assert head is not None, "there are migrations"
    return head


def oldest_serving_revision() -> str:
    """Returns the oldest revision whose code may serve a schema at this code's revision."""
    oldest = compatibility.oldest_code(_scripts(), expected_revision())
    assert oldest is not None, "the first migration does more than expand"
    return oldest


async def assert_fit_to_serve(database: Database) -> None:
    """Raises `db.errors.UnusableDatabase` unless this code can serve from this database: SchemaMismatch at
    another revision (a newer one that only expanded is served), `db.roles.PrivilegedRole` if row-level
    security would not bind this role, `db.roles.MissingGrants`. Raises DatabaseUnavailable. Every process
    calls it before its first query.
    """
    with translated_errors():
        async with database.engine.connect() as connection:
            await connection.run_sync(_assert_fit)


def _assert_fit(connection: Connection) -> None:
    roles.assert_confined(connection)
    unreadable = roles.unreadable_tables(connection)
    if compatibility.VERSION_TABLE not in unreadable:
        found, expected = _current_revision(connection), expected_revision()
        if found != expected and not _may_serve(found, compatibility.recorded(connection), expected):
            raise SchemaMismatch(found, expected)
    if unreadable:
        raise roles.MissingGrants(roles.current_role(connection), unreadable)


def _may_serve(found: str | None, oldest_code: str | None, ours: str) -> bool:
    return (
        found is not None
        and compatibility.is_newer(found, ours)
        and oldest_code is not None
        and oldest_code <= ours
    )


def _remedy(found: str | None, expected: str) -> str:
    if found is None or _is_known(found):
        return "run `rootstock migrate`"
    if compatibility.is_newer(found, expected):
        return "install the release that migrated it, or a later one"
    return (
        "it belongs to another application; give Rootstock a database of its own and run `rootstock migrate`"
    )


def _current_revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _is_known(revision: str) -> bool:
    return revision in {script.revision for script in _scripts().walk_revisions()}


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(Config(ALEMBIC_INI))


@contextmanager
def _connected(url: str) -> Iterator[tuple[Config, Connection]]:
    config = Config(ALEMBIC_INI)
    engine = create_engine(url, poolclass=pool.NullPool)
    try:
        with engine.connect() as connection:
            config.attributes["connection"] = connection
            yield config, connection
    finally:
        engine.dispose()
