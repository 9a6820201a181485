"""The tasks that sample status and capacity measure what waits, and survive without a database."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import redis.asyncio
from sqlalchemy import text

from adapters.jobs.repository import AllTenantsJobs
from db.errors import DatabaseUnavailable
from db.session import EVERY_TENANT, Database
from engine.protocol import JOURNAL_STREAM
from sla.capacity.engine_loads import EngineLoad, report_loads
from sla.capacity.reading import CapacityReports
from sla.capacity.sampling import CapacitySampling
from sla.status.components import ProcessReport
from sla.status.sampling import SAMPLES, StatusSampling, latest_sample, report_process
from tests.worker.jobs_stack import JobsStack
from worker.tasks import capacity, status


class Away:
    @asynccontextmanager
    async def read(self, tenant: str) -> Any:
        raise DatabaseUnavailable("away")
        yield

    write = read


def runtime(database: Any, client: redis.asyncio.Redis) -> Any:
    return SimpleNamespace(
        database=database,
        redis=client,
        status=StatusSampling(database, client),
        capacity=CapacitySampling(database, client),
    )


async def test_usage_that_waits_is_as_old_as_its_first_event(redis_client: redis.asyncio.Redis) -> None:
    here = runtime(None, redis_client)
    assert await status.metering_lag(here) == 0.0
    for seconds in (400, 10):
        at = int((time.time() - seconds) * 1000)
        await redis_client.xadd(JOURNAL_STREAM, {"event": b""}, id=f"{at}-0")
    assert await status.metering_lag(here) == pytest.approx(400, abs=5)


async def test_a_job_waits_until_one_is_begun(jobs: JobsStack, database: Database) -> None:
    async def waited(change: str) -> float:
        async with database.write(EVERY_TENANT) as session:
            await session.execute(text(f"UPDATE jobs SET {change}"))
        async with database.read(EVERY_TENANT) as session:
            return await AllTenantsJobs(session).oldest_wait()

    async with database.read(EVERY_TENANT) as session:
        assert await AllTenantsJobs(session).oldest_wait() == 0.0
    await jobs.make_job()
    old = "created_at = now() - interval '20 minutes'"
    assert await waited(old) == pytest.approx(1200, abs=30)
    assert await waited("attempts = 1") == 0.0, "it waits for another attempt"
    assert await waited("status = 'running', attempts = 0, started_at = now()") == 0.0


async def test_a_sample_is_kept_while_the_database_is_away(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    await report_process(redis_client, "api-0", ProcessReport(time.time(), (), {"llama": True}))
    with pytest.raises(DatabaseUnavailable):
        await status.sample(runtime(Away(), redis_client))
    found = await latest_sample(redis_client)
    assert found is not None
    assert found.states["uploads"] == "down"
    await status.sample(runtime(database, redis_client))
    assert await redis_client.llen(SAMPLES) == 0


async def test_the_planner_is_asked_for_each_base(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    load = EngineLoad(engine_id="e", incarnation="a", base="llama", at=time.time(), device="cpu")
    await report_loads(redis_client, [load], None)
    await capacity.plan(runtime(database, redis_client))
    advice = await CapacityReports(database, redis_client).advice()
    assert "this base runs on cpu" in advice["llama"].why_not
