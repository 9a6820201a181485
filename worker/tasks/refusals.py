"""Stores the refused requests that API processes sent, and drops old ones."""

from __future__ import annotations

import structlog
from celery import Celery
from redis.exceptions import RedisError

from db.errors import DatabaseUnavailable
from worker.app import STORE_REFUSED_REQUESTS, TIDY_REFUSED_REQUESTS
from worker.runtime import Runtime

log = structlog.get_logger(__name__)


def register(app: Celery, runtime: Runtime) -> None:
    @app.task(name=STORE_REFUSED_REQUESTS, time_limit=300)
    def store_refused_requests() -> None:
        """Stores what is in the stream. What fails stays there for the next time."""
        try:
            runtime.run(_store(runtime))
        except (DatabaseUnavailable, RedisError) as error:
            log.warning("refused requests stay in the stream", error=str(error))

    @app.task(name=TIDY_REFUSED_REQUESTS, time_limit=300)
    def tidy_refused_requests() -> None:
        """Creates the partitions of the days ahead, and drops old ones."""
        try:
            dropped = runtime.run(_tidy(runtime))
        except (DatabaseUnavailable, RedisError) as error:
            log.error("partitions of refused requests not created or dropped", error=str(error))
        else:
            log.info("partitions of refused requests dropped", count=dropped)


# The runtime's services exist once its loop runs.
async def _store(runtime: Runtime) -> int:
    return await runtime.refusals.drain()


async def _tidy(runtime: Runtime) -> int:
    return await runtime.refusals.tidy()
