"""Stores the metadata of requests."""

from __future__ import annotations

import structlog
from celery import Celery
from redis.exceptions import RedisError

from db.errors import DatabaseUnavailable
from worker.app import STORE_REQUEST_METADATA, TIDY_REQUEST_METADATA
from worker.runtime import Runtime

log = structlog.get_logger(__name__)


def register(app: Celery, runtime: Runtime) -> None:
    @app.task(name=STORE_REQUEST_METADATA, time_limit=300)
    def store_request_metadata() -> None:
        """Stores what is in the stream. What fails stays there for the next time."""
        try:
            runtime.run(_store(runtime))
        except (DatabaseUnavailable, RedisError) as error:
            log.warning("metadata of requests stays in the stream", error=str(error))

    @app.task(name=TIDY_REQUEST_METADATA, time_limit=300)
    def tidy_request_metadata() -> None:
        """Forgets consumers of the stream that are gone. What fails, the next run does."""
        try:
            runtime.run(_tidy(runtime))
        except RedisError as error:
            log.warning("consumers of the metadata of requests are forgotten later", error=str(error))


# The runtime's services exist once its loop runs.
async def _store(runtime: Runtime) -> int:
    return await runtime.request_metadata.drain()


async def _tidy(runtime: Runtime) -> None:
    await runtime.request_metadata.tidy()
