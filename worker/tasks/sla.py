"""Moves the API processes' counts of service levels into the database."""

from __future__ import annotations

import structlog
from celery import Celery
from redis.exceptions import RedisError

from db.errors import DatabaseUnavailable
from worker.app import COUNT_SERVICE_LEVELS, TIDY_SERVICE_LEVELS
from worker.runtime import Runtime

log = structlog.get_logger(__name__)


def register(app: Celery, runtime: Runtime) -> None:
    @app.task(name=COUNT_SERVICE_LEVELS, time_limit=300)
    def count_service_levels() -> None:
        """Counts the batches in the stream. What fails stays in the stream for the next time."""
        try:
            counted = runtime.run(_count(runtime))
        except (DatabaseUnavailable, RedisError) as error:
            log.warning("service levels stay in the stream", error=str(error))
        else:
            if counted:
                log.debug("service levels counted", batches=counted)

    @app.task(name=TIDY_SERVICE_LEVELS, time_limit=300)
    def tidy_service_levels() -> None:
        """Creates the partitions of the months ahead, and forgets old batches and samples."""
        try:
            runtime.run(_tidy(runtime))
        except (DatabaseUnavailable, RedisError) as error:
            log.error("partitions of service levels not created", error=str(error))
        else:
            log.info("service levels tidied")


# The runtime's services exist once its loop runs.
async def _count(runtime: Runtime) -> int:
    return await runtime.service_levels.drain()


async def _tidy(runtime: Runtime) -> None:
    await runtime.service_levels.tidy()
    await runtime.status.tidy()
    await runtime.capacity.tidy()
