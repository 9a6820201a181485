"""Releases reservations that no process renews any more."""

from __future__ import annotations

import logging

from celery import Celery
from redis.exceptions import RedisError

from tenants.quotas.reservation_sweep import ReservationSweep
from worker.app import SWEEP_RESERVATIONS
from worker.runtime import Runtime

logger = logging.getLogger(__name__)


def register(app: Celery, runtime: Runtime) -> None:
    @app.task(name=SWEEP_RESERVATIONS, time_limit=300)
    def sweep_reservations() -> None:
        """Releases the reservations of processes that are gone. What fails, the next sweep does."""
        try:
            holding = runtime.run(_sweep(runtime))
        except RedisError as error:
            logger.warning("reservations are released by the next sweep: %s", error)
        else:
            logger.debug("tenants with open reservations: %d", holding)


async def _sweep(runtime: Runtime) -> int:
    return await ReservationSweep(runtime.redis).sweep()
