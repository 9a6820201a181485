"""kill -9 of a meter between any two of its steps: the next one completes the work, exactly."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis.asyncio
from sqlalchemy import text

from billing.metering import JournalMeter
from db.session import EVERY_TENANT, Database
from engine.protocol import JOURNAL_STREAM
from tests.support.journal import usage_event, write_events
from tests.support.killed_meter import BATCH_SIZE, INSTANTS

ROOT = Path(__file__).resolve().parents[2]
LEFT = {"taken": 20, "written": 20, "committed": 20, "acknowledged": 10}
"""Entries still in the journal after the death, of three batches."""
WRITTEN = {"taken": 10, "written": 10, "committed": 20, "acknowledged": 20}
"""Rows in the ledger by then."""


async def totals(database: Database) -> tuple[int, int, int, int]:
    statement = """
        SELECT (SELECT count(*) FROM usage_records),
               (SELECT coalesce(sum(completion_tokens), 0) FROM usage_records),
               (SELECT coalesce(sum(num_requests), 0) FROM usage_rollups),
               (SELECT coalesce(sum(completion_tokens), 0) FROM usage_rollups)
    """
    async with database.read(EVERY_TENANT) as session:
        row = (await session.execute(text(statement))).one()
    return int(row[0]), int(row[1]), int(row[2]), int(row[3])


@pytest.mark.parametrize("instant", INSTANTS)
async def test_a_meter_killed_at_any_instant_loses_and_doubles_nothing(
    instant: str, database: Database, database_url: str, redis_url: str, redis_client: redis.asyncio.Redis
) -> None:
    write_events(redis_url, [usage_event(f"req-{i:02}", completion=i) for i in range(3 * BATCH_SIZE)])
    command = [sys.executable, "-m", "tests.support.killed_meter", database_url, redis_url, instant]
    killed = await asyncio.to_thread(subprocess.run, command, cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL
    assert await redis_client.xlen(JOURNAL_STREAM) == LEFT[instant]
    rows = WRITTEN[instant]
    assert await totals(database) == (rows, sum(range(rows)), rows, sum(range(rows)))

    survivor = JournalMeter(database, redis_client, "survivor", batch_size=BATCH_SIZE, stale_after=0)
    await survivor.drain()
    assert await totals(database) == (30, sum(range(30)), 30, sum(range(30)))
    assert await redis_client.xlen(JOURNAL_STREAM) == 0
    assert (await survivor.drain()).num_entries == 0
