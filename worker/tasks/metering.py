"""From the engines' journal to the ledger, and the ledger's partitions."""

from __future__ import annotations

import logging

from celery import Celery
from redis.exceptions import RedisError

from billing.partitions import make_partitions_ahead
from db.errors import DatabaseUnavailable
from worker.app import MAKE_PARTITIONS, METER_JOURNAL
from worker.runtime import Runtime

logger = logging.getLogger(__name__)


def register(app: Celery, runtime: Runtime) -> None:
    @app.task(name=METER_JOURNAL, time_limit=300)
    def meter_journal() -> None:
        """Move the engines' usage journal into the ledger. What fails is in the journal still, for the next
        second.
        """
        try:
            drained = runtime.run(_drain(runtime))
        except (DatabaseUnavailable, RedisError) as error:
            logger.warning("usage stays in the journal: %s", error)
        else:
            if drained:
                logger.debug("metered %d journal entries", drained)

    @app.task(name=MAKE_PARTITIONS, time_limit=300)
    def make_partitions() -> None:
        """Make the ledger's partitions of the months ahead, and forget meters long gone."""
        try:
            made = runtime.run(_make_partitions(runtime))
        except (DatabaseUnavailable, RedisError) as error:
            logger.error("partitions not made, rows of a month without one go to the default: %s", error)
        else:
            logger.info("ledger partitions made: %d", made)


async def _drain(runtime: Runtime) -> int:
    return (await runtime.meter.drain()).num_entries


async def _make_partitions(runtime: Runtime) -> int:
    made = await make_partitions_ahead(runtime.database)
    await runtime.meter.forget_idle_consumers()
    return made
