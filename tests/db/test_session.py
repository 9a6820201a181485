from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import psycopg
import pytest
import structlog
from sqlalchemy import create_engine, pool, text
from sqlalchemy.exc import DBAPIError
from structlog.testing import capture_logs

from cli.local.postgres import SERVING_ROLE
from db.errors import DatabaseUnavailable
from db.session import EVERY_TENANT, Database


async def count(database: Database) -> int:
    async with database.read(EVERY_TENANT) as session:
        return (await session.execute(text("SELECT count(*) FROM t"))).scalar_one()


@pytest.fixture
async def table(database: Database, owner_url: str) -> Database:
    with create_engine(owner_url, poolclass=pool.NullPool).begin() as connection:
        connection.execute(text(f"CREATE TABLE t (x int); GRANT ALL ON t TO {SERVING_ROLE}"))
    return database


async def test_a_write_is_committed_at_the_end_of_its_block(table: Database) -> None:
    async with table.write(EVERY_TENANT) as session:
        await session.execute(text("INSERT INTO t VALUES (1)"))
        assert await count(table) == 0
    assert await count(table) == 1


async def test_a_write_that_raises_leaves_nothing_and_sends_nothing(table: Database) -> None:
    sent: list[str] = []

    async def job() -> None:
        sent.append("job")

    with pytest.raises(LookupError):  # noqa: PT012  what the block does before it raises is the point
        async with table.write(EVERY_TENANT) as session:
            await session.execute(text("INSERT INTO t VALUES (1)"))
            session.after_commit(job)
            raise LookupError
    assert await count(table) == 0
    assert sent == []


async def test_a_read_session_cannot_write(table: Database) -> None:
    with pytest.raises(DBAPIError, match="read-only transaction"):
        async with table.read(EVERY_TENANT) as session:
            await session.execute(text("INSERT INTO t VALUES (1)"))


async def test_jobs_run_in_order_after_the_commit_and_see_the_rows(table: Database) -> None:
    seen: list[int] = []

    async def look() -> None:
        seen.append(await count(table))

    async with table.write(EVERY_TENANT) as session:
        session.after_commit(look)
        session.after_commit(look)
        await session.execute(text("INSERT INTO t VALUES (1)"))
    assert seen == [1, 1]


async def test_a_failing_job_is_logged_and_the_next_still_runs(table: Database) -> None:
    ran: list[str] = []

    async def broken() -> None:
        raise ConnectionError("broker away")

    async def sound() -> None:
        ran.append("sound")

    with capture_logs([structlog.processors.format_exc_info]) as lines:
        async with table.write(EVERY_TENANT) as session:
            session.after_commit(broken)
            session.after_commit(sound)
    assert ran == ["sound"]
    [line] = lines
    assert (line["log_level"], line["event"]) == ("error", "a job queued for after the commit failed")
    assert "broker away" in line["exception"]


async def test_connections_go_back_to_the_pool(table: Database) -> None:
    assert table.checked_out == 0
    async with table.read(EVERY_TENANT):
        assert table.checked_out == 1
    assert table.checked_out == 0


async def test_a_statement_past_its_timeout_is_ended(database_url: str) -> None:
    database = Database(database_url, statement_timeout=0.05)
    with pytest.raises(DatabaseUnavailable, match="statement timeout"):
        async with database.read(EVERY_TENANT) as session:
            await session.execute(text("SELECT pg_sleep(5)"))
    await database.close()


STOPS_IN_A_TRANSACTION = """
import asyncio, os, signal, sys
from sqlalchemy import text
from db.errors import DatabaseUnavailable
from db.session import EVERY_TENANT, Database

async def main() -> None:
    database = Database(sys.argv[1], pool_size=1, idle_transaction_timeout=0.5)
    try:
        async with database.write(EVERY_TENANT) as session:
            await session.execute(text("UPDATE t SET x = 2"))
            os.kill(os.getpid(), signal.SIGSTOP)
    except DatabaseUnavailable as error:
        print(error)
    async with database.write(EVERY_TENANT) as session:
        await session.execute(text("UPDATE t SET x = x + 10"))
    await database.close()

asyncio.run(main())
"""


def start_stopping(database_url: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", STOPS_IN_A_TRANSACTION, database_url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def test_a_process_that_stops_in_a_transaction_does_not_keep_its_locks(
    table: Database, database_url: str
) -> None:
    async with table.write(EVERY_TENANT) as session:
        await session.execute(text("INSERT INTO t VALUES (1)"))
    stopping = start_stopping(database_url)
    try:
        _, status = await asyncio.to_thread(os.waitpid, stopping.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        async with table.write(EVERY_TENANT) as session:
            changed = await session.execute(text("UPDATE t SET x = 3 RETURNING x"))
            assert changed.scalar_one() == 3
        stopping.send_signal(signal.SIGCONT)
        output, _ = await asyncio.to_thread(stopping.communicate, timeout=60)
    finally:
        stopping.kill()
    assert output.startswith("database unavailable: "), output
    assert "idle-in-transaction timeout" in output
    assert stopping.returncode == 0
    async with table.read(EVERY_TENANT) as session:
        assert (await session.execute(text("SELECT x FROM t"))).scalars().all() == [13]


async def test_a_pool_that_is_empty_gives_up_after_its_timeout(database_url: str) -> None:
    database = Database(database_url, pool_size=1, pool_overflow=0, pool_timeout=0.05)
    async with database.read(EVERY_TENANT):
        with pytest.raises(DatabaseUnavailable, match="QueuePool limit"):
            async with asyncio.timeout(60), database.read(EVERY_TENANT):
                pass
    await database.close()


async def test_a_server_that_is_away_is_said_to_be() -> None:
    away = Database("postgresql+psycopg://nobody@/nothing?host=/nonexistent")
    with pytest.raises(DatabaseUnavailable, match="connection"):
        await away.ping()
    with pytest.raises(DatabaseUnavailable):
        async with away.write(EVERY_TENANT) as session:
            await session.execute(text("SELECT 1"))
    await away.close()


async def test_connections_that_the_server_has_closed_are_replaced(
    table: Database, postgres_admin: psycopg.Connection
) -> None:
    async def process() -> int:
        async with table.read(EVERY_TENANT) as session:
            await meeting.wait()
            return (await session.execute(text("SELECT pg_backend_pid()"))).scalar_one()

    meeting = asyncio.Barrier(3)
    kept = await asyncio.gather(process(), process(), process())
    assert len({*kept}) == 3
    for one in kept:
        postgres_admin.execute("SELECT pg_terminate_backend(%s, 10000)", (one,))
    meeting = asyncio.Barrier(1)
    assert await process() not in kept
    async with table.write(EVERY_TENANT) as session:
        await session.execute(text("INSERT INTO t VALUES (1)"))
    assert await count(table) == 1
    assert table.checked_out == 0


async def test_a_connection_that_ends_in_a_transaction_ends_only_that(
    table: Database, postgres_admin: psycopg.Connection
) -> None:
    with pytest.raises(DatabaseUnavailable):  # noqa: PT012  as above
        async with table.write(EVERY_TENANT) as session:
            own = (await session.execute(text("SELECT pg_backend_pid()"))).scalar_one()
            postgres_admin.execute("SELECT pg_terminate_backend(%s, 10000)", (own,))
            await session.execute(text("INSERT INTO t VALUES (1)"))
    assert await count(table) == 0


async def test_an_error_in_the_query_is_not_the_servers_absence(table: Database) -> None:
    with pytest.raises(DBAPIError, match="does not exist"):
        async with table.read(EVERY_TENANT) as session:
            await session.execute(text("SELECT nonsense FROM t"))


async def test_settings_come_with_each_transaction_not_with_the_connection(database_url: str) -> None:
    """A pooler may give every transaction another connection, and refuses start-up options."""
    database = Database(database_url, statement_timeout=7, idle_transaction_timeout=8)
    names = ("statement_timeout", "idle_in_transaction_session_timeout", "timezone")
    query = text("SELECT " + ", ".join(f"current_setting('{name}')" for name in names))
    try:
        for open_session in (database.read, database.write):
            async with open_session(EVERY_TENANT) as session:
                assert (await session.execute(query)).one() == ("7s", "8s", "UTC")
        async with database.engine.connect() as connection:
            raw = await connection.get_raw_connection()
            assert "options" not in raw.driver_connection.info.get_parameters()
            assert (await connection.execute(query)).one()[:2] == ("0", "0")
    finally:
        await database.close()


@pytest.mark.parametrize("prepared", [True, False])
async def test_statements_are_prepared_unless_a_pooler_cannot_keep_them(
    database_url: str, prepared: bool
) -> None:
    database = Database(database_url, pool_size=1, prepared_statements=prepared)
    try:
        for _ in range(10):
            async with database.read(EVERY_TENANT) as session:
                await session.execute(text("SELECT 1"))
        async with database.read(EVERY_TENANT) as session:
            count = "SELECT count(*) FROM pg_prepared_statements WHERE statement = 'SELECT 1'"
            assert (await session.execute(text(count))).scalar_one() == prepared
    finally:
        await database.close()
