"""From the API processes' counts of how requests were served to the minutes in the database."""

from __future__ import annotations

import logging

from celery import Celery
from redis.exceptions import RedisError

from db.errors import DatabaseUnavailable
from worker.app import COUNT_SERVICE_LEVELS, TIDY_SERVICE_LEVELS
from worker.runtime import Runtime

logger = logging.getLogger(__name__)


def register(app: Celery, runtime: Runtime) -> None:
    @app.task(name=COUNT_SERVICE_LEVELS, time_limit=300)
    def count_service_levels() -> None:
        """What fails is in the stream still, for the next time."""
        try:
            counted = runtime.run(_count(runtime))
        except (DatabaseUnavailable, RedisError) as error:
            logger.warning("service levels stay in the stream: %s", error)
        else:
            if counted:
                logger.debug("counted %d batches of service levels", counted)

    @app.task(name=TIDY_SERVICE_LEVELS, time_limit=300)
    def tidy_service_levels() -> None:
        """Make the partitions of the months ahead; forget what is long counted."""
        try:
            runtime.run(_tidy(runtime))
        except (DatabaseUnavailable, RedisError) as error:
            logger.error("no partitions of service levels made, rows may go to the default: %s", error)
        else:
            logger.info("service levels tidied")


# The runtime's services are there once its loop is.
async def _count(runtime: Runtime) -> int:
    return await runtime.service_levels.drain()


async def _tidy(runtime: Runtime) -> None:
    await runtime.service_levels.tidy()
