"""Migrations that were released stay as they are, and the oldest supported schema can be upgraded."""

from __future__ import annotations

import gzip
import re
import shutil
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, inspect, make_url, pool, text

from billing.invoices.verification import InvoiceVerification
from cli.local.postgres import serving_url
from db import schema
from db.session import EVERY_TENANT, Database
from migrations import releases
from migrations.metadata import is_modelled, metadata

SCHEMAS = Path(__file__).parent / "schemas"


def test_released_migrations_are_as_they_were() -> None:
    releases.verify()


def test_unreleased_migrations_come_after_the_released_ones() -> None:
    scripts = ScriptDirectory.from_config(Config(schema.ALEMBIC_INI))
    revisions = [script.revision for script in scripts.walk_revisions()][::-1]
    assert len(scripts.get_heads()) == 1
    assert all(re.fullmatch(r"[0-9]{4}", revision) for revision in revisions)
    assert revisions == sorted(revisions), "each builds on the one before"
    listed = [entry.file[:4] for entry in releases.released()]
    assert listed == revisions[: len(listed)]


@pytest.fixture
def history(tmp_path: Path) -> tuple[Path, Path]:
    """A copy of the list and of the migrations."""
    versions = tmp_path / "versions"
    shutil.copytree(releases.VERSIONS, versions, ignore=shutil.ignore_patterns("__pycache__"))
    return Path(shutil.copy(releases.LIST, tmp_path)), versions


@pytest.mark.parametrize("change", ["edited", "removed"])
def test_a_changed_migration_is_named(history: tuple[Path, Path], change: str) -> None:
    listed, versions = history
    path = versions / "0006_sla.py"
    if change == "edited":
        path.write_text(path.read_text() + "\n")
    else:
        path.unlink()
    with pytest.raises(releases.ChangedMigration, match=r"0006_sla.py was released with 0\.2\.0"):
        releases.verify(listed, versions)
    with pytest.raises(releases.ChangedMigration):
        releases.record("0.3.0", listed, versions)


def test_a_release_records_what_none_has_yet(history: tuple[Path, Path]) -> None:
    listed, versions = history
    releases.record("0.2.0", listed, versions)
    before = releases.released(listed)
    (versions / "9998_more.py").write_text("revision = '9998'\n")
    assert releases.record("0.3.0", listed, versions) == ["9998_more.py"]
    assert releases.record("0.3.0", listed, versions) == []
    assert releases.released(listed)[:-1] == before
    assert releases.released(listed)[-1].release == "0.3.0"
    releases.verify(listed, versions)


@pytest.fixture
def oldest_url(empty_database_url: str) -> str:
    """The oldest supported schema with what a demo left in it, as a dump of it restores it."""
    dump = gzip.decompress((SCHEMAS / f"{releases.OLDEST_SUPPORTED}.sql.gz").read_bytes()).decode()
    plain = make_url(empty_database_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain) as connection:
        connection.execute(dump)
    return empty_database_url


def counts(connection: Connection) -> dict[str, int]:
    """Rows by table."""
    tables = inspect(connection).get_table_names()
    return {name: connection.scalar(text(f"SELECT count(*) FROM {name}")) or 0 for name in tables}


async def test_the_oldest_supported_schema_is_upgraded_with_its_data(
    oldest_url: str,
) -> None:
    engine = create_engine(oldest_url, poolclass=pool.NullPool)
    with engine.connect() as connection:
        assert MigrationContext.configure(connection).get_current_revision() == releases.OLDEST_SUPPORTED
        before = counts(connection)
        usage = "SELECT request_id, cost, completion_tokens FROM usage_records ORDER BY 1"
        records = connection.execute(text(usage)).all()
    assert len(records) == 5
    assert before["api_keys"] == before["tenants"] == 3

    schema.upgrade(oldest_url, serving_url(oldest_url))

    with engine.connect() as connection:
        after = counts(connection)
        assert {name: after.get(name) for name in before} == before
        assert connection.execute(text(usage)).all() == records
        context = MigrationContext.configure(
            connection,
            opts={"include_object": is_modelled, "compare_type": True, "compare_server_default": True},
        )
        assert compare_metadata(context, metadata) == []
        # What a superuser migrated can be dumped and restored by an owner that is none.
        custom = "SELECT proname FROM pg_proc WHERE array_to_string(proconfig, ',') LIKE '%rootstock.%'"
        assert connection.execute(text(custom)).all() == []
    database = Database(serving_url(oldest_url))
    try:
        await schema.assert_fit_to_serve(database)
        assert await InvoiceVerification(database).verify() == []
        async with database.write(EVERY_TENANT) as session:
            made = await session.execute(text("SELECT ensure_usage_partitions('2031-01-01', 2)"))
            assert made.scalar_one() == 2
    finally:
        await database.close()
