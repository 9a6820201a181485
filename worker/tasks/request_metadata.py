"""Stores the metadata of requests, and deletes that of organizations that store nothing."""

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
        """Deletes the rows of organizations that store nothing. What fails, the next run does."""
        try:
            deleted = runtime.run(_tidy(runtime))
        except (DatabaseUnavailable, RedisError) as error:
            log.warning("metadata of requests is deleted later", error=str(error))
        else:
            if deleted:
                log.info("metadata of requests deleted", count=deleted)


# The runtime's services exist once its loop runs.
async def _store(runtime: Runtime) -> int:
    return await runtime.request_metadata.drain()


async def _tidy(runtime: Runtime) -> int:
    return await runtime.request_metadata.tidy()
