"""Releases of different versions on one database, and migrations that fail half-way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, make_url, pool, text
from sqlalchemy.exc import ProgrammingError

from db import compatibility, roles, schema
from db.session import Database
from tests.support.clusters import migrator_url

MIGRATION = """
from alembic import op

revision, down_revision, branch_labels, depends_on = "{revision}", "{before}", None, None
expand_only = {expand_only}


def upgrade():
    op.execute("CREATE TABLE added_{revision} (x integer)")
    {last}


def downgrade():
    op.execute("DROP TABLE added_{revision}")
"""
OURS = schema.expected_revision()

AddMigration = Callable[..., str]


@pytest.fixture
def add_migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AddMigration:
    """Makes the code, as far as migrations go, that of a later release; `monkeypatch.undo()` goes back."""
    ours = ScriptDirectory.from_config(Config(schema.ALEMBIC_INI))
    ini = tmp_path / "alembic.ini"
    ini.write_text(
        f"[alembic]\nscript_location = {ours.dir}\npath_separator = newline\n"
        f"version_locations = {ours.versions}\n    {tmp_path}\n"
    )

    def add(*, expand_only: bool, last: str = "") -> str:
        monkeypatch.setattr(schema, "ALEMBIC_INI", ini)
        before = schema.expected_revision()
        revision = f"{int(before) + 1:04}"
        module = MIGRATION.format(revision=revision, before=before, expand_only=expand_only, last=last)
        (tmp_path / f"{revision}_added.py").write_text(module)
        return revision

    return add


def state(url: str) -> tuple[str, list[str]]:
    """The stamp, and tables of added migrations."""
    with create_engine(url, poolclass=pool.NullPool).connect() as connection:
        stamp = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
        added = "SELECT relname FROM pg_class WHERE relname LIKE 'added\\_%' ORDER BY 1"
        return stamp, list(connection.execute(text(added)).scalars())


async def test_a_newer_schema_that_only_expanded_is_served_by_this_release(
    database: Database, owner_url: str, add_migration: AddMigration, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        newest = add_migration(expand_only=True)
    schema.upgrade(migrator_url(owner_url), database.engine.url.render_as_string(hide_password=False))
    monkeypatch.undo()
    assert state(owner_url)[0] == newest
    await schema.assert_fit_to_serve(database)


async def test_a_newer_schema_that_lost_something_is_refused_with_both_versions(
    database: Database, owner_url: str, add_migration: AddMigration, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_migration(expand_only=False)
    newest = add_migration(expand_only=True)
    schema.upgrade(migrator_url(owner_url), database.engine.url.render_as_string(hide_password=False))
    await schema.assert_fit_to_serve(database)  # the later release itself
    monkeypatch.undo()
    with pytest.raises(schema.SchemaMismatch, match="install the release") as caught:
        await schema.assert_fit_to_serve(database)
    assert (caught.value.found, caught.value.expected) == (newest, OURS)


async def test_an_older_schema_is_never_served(
    database: Database, owner_url: str, add_migration: AddMigration
) -> None:
    newer = add_migration(expand_only=True)
    with pytest.raises(schema.SchemaMismatch, match=f"at {OURS}, this release needs {newer}: run `rootstock"):
        await schema.assert_fit_to_serve(database)


def test_going_back_forgets_what_later_migrations_said(owner_url: str, add_migration: AddMigration) -> None:
    lossy = add_migration(expand_only=False)
    owner = migrator_url(owner_url)
    with create_engine(owner_url, poolclass=pool.NullPool).connect() as connection:
        before = compatibility.recorded(connection)
        schema.upgrade(owner)
        assert compatibility.recorded(connection) == lossy
        connection.rollback()
        schema.downgrade(owner, OURS)
        assert compatibility.recorded(connection) == before


def test_a_migration_that_fails_leaves_nothing_of_itself(owner_url: str, add_migration: AddMigration) -> None:
    whole = add_migration(expand_only=True)
    failing = add_migration(expand_only=True, last='op.execute("SELECT 1 / 0")')
    with pytest.raises(schema.MigrationFailed, match=f"stays at {whole}: division by zero") as caught:
        schema.upgrade(migrator_url(owner_url))
    assert (caught.value.found, caught.value.expected) == (whole, failing)
    assert state(owner_url) == (whole, [f"added_{whole}"])


def test_the_last_stamp_comes_with_the_rights_of_the_role_that_serves(
    owner_url: str, database_url: str, add_migration: AddMigration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stamp says that processes may start: without their rights each of their requests would fail."""
    add_migration(expand_only=True)
    granted = roles.grant

    def fail(connection: object, role: str) -> None:
        granted(connection, role)  # type: ignore[arg-type]
        raise ProgrammingError("GRANT", None, Exception("permission denied"))

    monkeypatch.setattr(roles, "grant", fail)
    with pytest.raises(schema.MigrationFailed, match="permission denied"):
        schema.upgrade(migrator_url(owner_url), database_url)
    assert state(owner_url) == (OURS, [])


def test_nothing_is_migrated_for_a_role_that_does_not_exist(
    owner_url: str, add_migration: AddMigration
) -> None:
    add_migration(expand_only=True)
    missing = make_url(owner_url).set(username="not_made_yet").render_as_string(hide_password=False)
    with pytest.raises(roles.RoleMissing, match="not_made_yet"):
        schema.upgrade(migrator_url(owner_url), missing)
    assert state(owner_url) == (OURS, [])


def test_the_database_of_another_application_is_not_migrated(owner_url: str) -> None:
    with create_engine(owner_url, poolclass=pool.NullPool).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'ae1027a6acf'"))
    with pytest.raises(schema.SchemaMismatch, match=r"at ae1027a6acf.*another application"):
        schema.upgrade(migrator_url(owner_url))


@pytest.mark.parametrize("table", ["alembic_version", "api_keys"])
async def test_a_role_without_its_rights_is_refused(database: Database, owner_url: str, table: str) -> None:
    with create_engine(owner_url, poolclass=pool.NullPool).begin() as connection:
        connection.execute(text(f"REVOKE SELECT ON {table} FROM {database.engine.url.username}"))
    with pytest.raises(
        roles.MissingGrants, match=rf"may not read 1 tables \({table}\): run `rootstock migrate`"
    ):
        await schema.assert_fit_to_serve(database)
    schema.upgrade(migrator_url(owner_url), database.engine.url.render_as_string(hide_password=False))
    await schema.assert_fit_to_serve(database)
