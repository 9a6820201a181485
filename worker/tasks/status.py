"""Samples the components of the status page every minute."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import structlog
from celery import Celery
from redis.exceptions import RedisError

from adapters.jobs.repository import AllTenantsJobs
from db.errors import DatabaseUnavailable
from db.session import EVERY_TENANT
from engine.protocol import JOURNAL_STREAM
from sla.status.sampling import PATIENCE_S
from worker.app import SAMPLE_STATUS
from worker.runtime import Runtime

log = structlog.get_logger(__name__)


def register(app: Celery, runtime: Runtime) -> None:
    @app.task(name=SAMPLE_STATUS, time_limit=50)
    def sample_status() -> None:
        """Takes a sample, and stores those that wait. While the database is away they wait in Redis."""
        try:
            runtime.run(sample(runtime))
        except RedisError as error:
            log.warning("the status page has no sample of this minute", error=str(error))
        except (DatabaseUnavailable, TimeoutError) as error:
            log.warning("samples of the status page wait in Redis", error=str(error))


async def sample(runtime: Runtime) -> None:
    """Raises RedisError, DatabaseUnavailable, TimeoutError."""
    oldest_job_s: float | None
    try:
        async with asyncio.timeout(PATIENCE_S), runtime.database.read(EVERY_TENANT) as session:
            oldest_job_s = await AllTenantsJobs(session).oldest_wait()
    except (DatabaseUnavailable, TimeoutError):
        oldest_job_s = None
    await runtime.status.sample(oldest_job_s=oldest_job_s, metering_lag_s=await metering_lag(runtime))
    await runtime.status.store()


async def metering_lag(runtime: Runtime) -> float:
    """Returns the age in seconds of the first usage event that is not in the ledger: those that are have left
    the stream.
    """
    entries: Any = await runtime.redis.xrange(JOURNAL_STREAM, count=1)
    if not entries:
        return 0.0
    milliseconds = int(entries[0][0].split(b"-")[0])
    return max(0.0, time.time() - milliseconds / 1000)
