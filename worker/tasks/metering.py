"""Moves the engines' journal into the ledger, creates the ledger's partitions, and makes charges."""

from __future__ import annotations

from datetime import UTC, datetime

import structlog
from celery import Celery
from redis.exceptions import RedisError

from billing.partitions import make_partitions_ahead
from db.errors import DatabaseUnavailable
from worker.app import MAKE_CHARGES, MAKE_PARTITIONS, METER_JOURNAL
from worker.runtime import Runtime

log = structlog.get_logger(__name__)


def register(app: Celery, runtime: Runtime) -> None:
    @app.task(name=METER_JOURNAL, time_limit=300)
    def meter_journal() -> None:
        """Moves the engines' usage journal into the ledger. If that fails, the entries stay in the journal
        for the next second.
        """
        try:
            drained = runtime.run(_drain(runtime))
        except (DatabaseUnavailable, RedisError) as error:
            log.warning("usage stays in the journal", error=str(error))
        else:
            if drained:
                log.debug("journal entries metered", entries=drained)

    @app.task(name=MAKE_PARTITIONS, time_limit=300)
    def make_partitions() -> None:
        """Creates the ledger's partitions of the months ahead, and forgets idle consumers."""
        try:
            made = runtime.run(_make_partitions(runtime))
        except (DatabaseUnavailable, RedisError) as error:
            log.error("partitions not created: rows may go to the default", error=str(error))
        else:
            log.info("ledger partitions created", partitions=made)

    @app.task(name=MAKE_CHARGES, time_limit=300)
    def make_charges() -> None:
        """Charges storage once a day is over, and successful jobs. What fails, the next run makes up for,
        however many days later.
        """
        try:
            made = runtime.run(_make_charges(runtime))
        except DatabaseUnavailable as error:
            log.warning("charges are made by the next run", error=str(error))
        else:
            if made:
                log.info("charges made", charges=made)


async def _drain(runtime: Runtime) -> int:
    return (await runtime.meter.drain()).num_entries


async def _make_partitions(runtime: Runtime) -> int:
    made = await make_partitions_ahead(runtime.database)
    await runtime.meter.forget_idle_consumers()
    return made


async def _make_charges(runtime: Runtime) -> int:
    now = datetime.now(UTC)
    return await runtime.charges.charge_calibrations() + await runtime.charges.charge_storage(now)
