from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, inspect, make_url, pool, text
from sqlalchemy.exc import OperationalError

from cli.local.postgres import serving_url
from db import schema
from db.session import Database
from migrations.metadata import is_modelled, metadata
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
RUNNER_LOCK, LOCK_TIMEOUT_S = 0x526F6F74, 5
"""As `migrations/env.py` has them."""
WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


def tables(url: str) -> set[str]:
    engine = create_engine(url, poolclass=pool.NullPool)
    with engine.connect() as connection:
        return set(inspect(connection).get_table_names())


def test_the_migrated_schema_is_what_the_models_say(database_url: str) -> None:
    engine = create_engine(database_url, poolclass=pool.NullPool)
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={"include_object": is_modelled, "compare_type": True, "compare_server_default": True},
        )
        assert compare_metadata(context, metadata) == []


def test_the_comparison_sees_a_difference(owner_url: str) -> None:
    engine = create_engine(owner_url, poolclass=pool.NullPool)
    with engine.connect() as connection:
        connection.execute(text("ALTER TABLE api_keys DROP COLUMN last_used_at"))
        context = MigrationContext.configure(connection, opts={"include_object": is_modelled})
        assert [change[0] for change in compare_metadata(context, metadata)] == ["add_column"]


def test_named_constraints_are_those_of_the_models(database_url: str) -> None:
    """Alembic does not compare check constraints and primary keys; their names say enough."""
    engine = create_engine(database_url, poolclass=pool.NullPool)
    with engine.connect() as connection:
        found = inspect(connection)
        for table in metadata.sorted_tables:
            names = {check["name"] for check in found.get_check_constraints(table.name)}
            names |= {found.get_pk_constraint(table.name)["name"]}
            names |= {key["name"] for key in found.get_foreign_keys(table.name)}
            names |= {unique["name"] for unique in found.get_unique_constraints(table.name)}
            assert names == {str(constraint.name) for constraint in table.constraints}, table.name


def test_down_and_up_again(empty_database_url: str) -> None:
    schema.upgrade(empty_database_url)
    before = tables(empty_database_url)
    assert {table.name for table in metadata.sorted_tables} <= before
    schema.downgrade(empty_database_url, "base")
    assert tables(empty_database_url) == {"alembic_version"}
    schema.upgrade(empty_database_url)
    assert tables(empty_database_url) == before


def test_upgrading_twice_changes_nothing(owner_url: str) -> None:
    before = tables(owner_url)
    schema.upgrade(owner_url)
    assert tables(owner_url) == before


def test_two_runners_at_once_apply_each_revision_once(empty_database_url: str) -> None:
    command = [
        sys.executable,
        "-c",
        "import sys; from db import schema; schema.upgrade(sys.argv[1])",
        empty_database_url,
    ]
    plain = make_url(empty_database_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as third:
        third.execute("SELECT pg_advisory_lock(%s)", [RUNNER_LOCK])
        runners = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
        until(lambda: third.execute(WAITING).fetchone() == (2,), 100, "both wait")
        time.sleep(LOCK_TIMEOUT_S + 1)  # migrations may take longer than one waits for a table
        third.execute("SELECT pg_advisory_unlock(%s)", [RUNNER_LOCK])
    assert [runner.wait(100) for runner in runners] == [0, 0]
    assert "usage_records" in tables(empty_database_url)


def test_a_migration_gives_up_on_a_lock_instead_of_blocking_everybody(
    owner_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = make_url(owner_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain) as busy:
        busy.execute("SELECT * FROM tenants")  # a transaction left open holds its lock
        started = time.monotonic()
        with pytest.raises(OperationalError, match="lock timeout"):
            schema.downgrade(owner_url, "base")
        assert time.monotonic() - started < 30
    assert "tenants" in tables(owner_url), "nothing of the failed migration stays"


async def test_a_current_schema_is_accepted(database: Database) -> None:
    await schema.assert_fit_to_serve(database)


async def test_an_empty_database_is_refused(empty_database_url: str) -> None:
    database = Database(serving_url(empty_database_url))
    try:
        with pytest.raises(schema.SchemaMismatch, match="rootstock migrate") as caught:
            await schema.assert_fit_to_serve(database)
        assert caught.value.found is None
    finally:
        await database.close()


async def test_a_schema_of_the_future_is_refused(database: Database, owner_url: str) -> None:
    with create_engine(owner_url, poolclass=pool.NullPool).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        connection.execute(text("COMMENT ON TABLE alembic_version IS NULL"))
    with pytest.raises(schema.SchemaMismatch, match="9999"):
        await schema.assert_fit_to_serve(database)
