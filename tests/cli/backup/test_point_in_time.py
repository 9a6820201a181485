"""A base backup and the archived log restore the database as of a moment after the backup."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from cli.backup.database import dump, programs_for, restore
from cli.backup.point_in_time import PointInTime, base_backup, recovered
from cli.errors import CliError
from cli.local.postgres import start_postgres
from cli.local.server import LocalServer
from tests.engine.process.engines import until
from tests.support.scratch import scratch_directory


@pytest.fixture
def server() -> Iterator[tuple[LocalServer, Path]]:
    """A private server that archives its log, and the archive."""
    with scratch_directory() as folder:
        archive = folder / "the archive's own"
        with start_postgres(folder, ephemeral=True, wal_archive=archive) as started:
            yield started, archive


def connect(url: str) -> psycopg.Connection:
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(plain, autocommit=True)


async def test_the_database_of_a_chosen_moment(
    server: tuple[LocalServer, Path], empty_database_url: str
) -> None:
    source, archive = server
    with connect(source.url) as connection:
        version = connection.info.server_version
        connection.execute("CREATE TABLE rows (number integer)")
        connection.execute("INSERT INTO rows VALUES (1)")
        chunks = [chunk async for chunk in base_backup(source.url, programs_for(version))]
        connection.execute("INSERT INTO rows VALUES (2)")
        moment = connection.execute("SELECT clock_timestamp()").fetchone()[0]
        connection.execute("DELETE FROM rows")  # what the restore is to undo
        connection.execute("INSERT INTO rows VALUES (3)")
        segment = connection.execute("SELECT pg_walfile_name(pg_switch_wal())").fetchone()[0]
    await until(lambda: (archive / segment).exists())
    async with recovered(chunks, source.url, version, PointInTime(moment, archive)) as url:
        await restore(empty_database_url, programs_for(version), dump(url, programs_for(version)))
    with connect(empty_database_url) as connection:
        assert connection.execute("SELECT * FROM rows ORDER BY 1").fetchall() == [(1,), (2,)]
    later = PointInTime(datetime(2100, 1, 1, tzinfo=UTC), archive)
    with pytest.raises(CliError, match="recovery ended before configured recovery target was reached"):
        async with recovered(chunks, source.url, version, later):
            pass
    with pytest.raises(CliError, match="the base backup cannot be unpacked: tar: Unexpected EOF"):
        async with recovered([b"".join(chunks)[:700_000]], source.url, version, later):
            pass
