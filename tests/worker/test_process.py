"""The worker as a process: it meters, survives its neighbours' deaths, and ends as it is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis.asyncio
from sqlalchemy import func, select, text

from billing.rollups import WRITER_LOCK
from cli.local.postgres import serving_url
from cli.local.redis import start_redis
from db.schema import expected_revision
from db.session import EVERY_TENANT, Database
from db.tasks import broker_url
from engine.protocol import JOURNAL_STREAM
from tests.support.journal import usage_event, write_events
from tests.support.waiting import eventually
from tests.support.workers import start_worker, worker


async def ledger(database: Database) -> tuple[int, int]:
    """(rows, completion tokens), which must be the rollups' too, at any instant."""
    records = "SELECT count(*), coalesce(sum(completion_tokens), 0) FROM usage_records"
    rollups = "SELECT coalesce(sum(num_requests), 0), coalesce(sum(completion_tokens), 0) FROM usage_rollups"
    async with database.read(EVERY_TENANT) as session:
        rows, tokens, *rolled = (
            await session.execute(text(f"SELECT * FROM ({records}) AS a, ({rollups}) AS b"))
        ).one()
    assert [rows, tokens] == rolled
    return int(rows), int(tokens)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_it_meters_every_second_and_ends_on_sigterm(
    database: Database, database_url: str, redis_url: str, redis_client: redis.asyncio.Redis, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    write_events(redis_url, [usage_event(f"early-{i}") for i in range(30)])
    with worker(database_url, redis_url, log) as process:

        async def all_metered() -> bool:
            return await ledger(database) == (30, 150)

        await eventually(all_metered, 60)
        write_events(redis_url, [usage_event("early-0", completion=9), usage_event("late")])

        async def more_metered() -> bool:
            return await ledger(database) == (31, 159)

        took = await eventually(more_metered)
        assert took < 4, "drained every second"
        async with database.read(EVERY_TENANT) as session:
            partitions = (
                await session.execute(
                    text("SELECT count(*) FROM pg_inherits WHERE inhparent = 'usage_records'::regclass")
                )
            ).scalar_one()
        assert partitions >= 5, "the daily task ran at the start: it made the month the migration had not"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
    assert await redis_client.xlen(JOURNAL_STREAM) == 0
    assert "Traceback" not in log.read_text()


async def test_killed_in_the_middle_it_loses_nothing_and_doubles_nothing(
    database: Database, database_url: str, redis_url: str, redis_client: redis.asyncio.Redis, tmp_path: Path
) -> None:
    """kill -9 at whatever instant comes up; every request has several events, a third of them arrive twice.

    The instants between two particular steps are made to happen in tests/billing/test_kill.py.
    """
    settings = {"meter_interval": "0.1", "meter_batch": "7", "meter_stale_after": "1"}
    num_requests = 100
    process = start_worker(database_url, redis_url, tmp_path / "log", **settings)
    try:
        events = [
            usage_event(f"req-{i}", completion=tokens) for tokens in (100, 256) for i in range(num_requests)
        ]
        write_events(redis_url, events + events[::3])

        async def draining() -> bool:
            return 0 < await redis_client.xlen(JOURNAL_STREAM) < 250

        await eventually(draining, 60)
        pool = children(process.pid)
        process.kill()
        process.wait()
        await eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pool))
        process = start_worker(database_url, redis_url, tmp_path / "log", **settings)
        write_events(redis_url, [usage_event(f"req-{i}", completion=300) for i in range(num_requests)])

        async def settled() -> bool:
            return await redis_client.xlen(JOURNAL_STREAM) == 0

        await eventually(settled, 60)
        assert await ledger(database) == (num_requests, num_requests * 300)
    finally:
        process.kill()
        process.wait()


async def test_a_task_that_ends_while_redis_is_away_does_not_block_the_queue(
    database: Database, database_url: str, servers_dir: Path, tmp_path: Path
) -> None:
    """It cannot be acknowledged then; the message left over must not be waited for."""
    directory, log = servers_dir / "unacknowledged", tmp_path / "log"
    server = start_redis(directory)
    try:
        with worker(database_url, server.url, log) as process:
            async with database.engine.connect() as other:
                await other.execute(select(func.pg_advisory_lock(WRITER_LOCK)))
                write_events(server.url, [usage_event("one")])

                async def waits_for_the_ledger() -> bool:
                    async with database.read(EVERY_TENANT) as session:
                        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
                        return bool((await session.execute(text(waiting))).scalar_one())

                await eventually(waits_for_the_ledger, 60)
                server.stop()
                await other.execute(select(func.pg_advisory_unlock(WRITER_LOCK)))
            await eventually(lambda: "Couldn't ack" in log.read_text(), 60)
            server = start_redis(directory)
            write_events(server.url, [usage_event("two")])

            async def both() -> bool:
                return await ledger(database) == (2, 10)

            await eventually(both, 60)
            assert process.poll() is None
    finally:
        server.stop()


async def test_it_waits_for_a_redis_that_went_away(
    database: Database, database_url: str, servers_dir: Path, tmp_path: Path
) -> None:
    directory = servers_dir / "away"
    server = start_redis(directory)
    try:
        with worker(database_url, server.url, tmp_path / "log") as process:
            write_events(server.url, [usage_event("one")])

            async def first() -> bool:
                return await ledger(database) == (1, 5)

            await eventually(first, 60)
            server.stop()
            server = start_redis(directory)
            write_events(server.url, [usage_event("two")])

            async def second() -> bool:
                return await ledger(database) == (2, 10)

            await eventually(second, 60)
            assert process.poll() is None
            process.terminate()
            assert process.wait(60) == 0, (tmp_path / "log").read_text()
    finally:
        server.stop()


async def test_it_refuses_a_schema_it_does_not_know(
    empty_database_url: str, redis_url: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with worker(serving_url(empty_database_url), redis_url, log) as process:
        assert process.wait(60) != 0
    written = log.read_text()
    assert f"schema is at no revision, this release needs {expected_revision()}" in written
    assert "rootstock migrate" in written
    assert "Traceback" not in written, "one line that says what to do"


async def test_it_refuses_a_role_that_row_security_does_not_hold(
    owner_url: str, redis_url: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with worker(owner_url, redis_url, log) as process:
        assert process.wait(60) != 0
    assert "is a superuser" in log.read_text()


def test_it_names_a_missing_setting(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ROOTSTOCK_")}
    done = subprocess.run(
        [sys.executable, "-m", "worker.main"], env=environment, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "redis_url" in done.stderr


@pytest.mark.parametrize(
    ("url", "broker"),
    [
        ("redis://host:1/2", "redis://host:1/2"),
        ("unix:///run/redis.sock?db=3", "redis+socket:///run/redis.sock?virtual_host=3"),
        ("unix:///run/redis.sock", "redis+socket:///run/redis.sock?virtual_host=0"),
    ],
)
def test_celery_is_told_the_same_redis_in_its_own_words(url: str, broker: str) -> None:
    assert broker_url(url) == broker
