"""Releases reservations that no process renews any more."""

from __future__ import annotations

import structlog
from celery import Celery
from redis.exceptions import RedisError

from tenants.quotas.reservation_sweep import ReservationSweep
from worker.app import SWEEP_RESERVATIONS
from worker.runtime import Runtime

log = structlog.get_logger(__name__)


def register(app: Celery, runtime: Runtime) -> None:
    @app.task(name=SWEEP_RESERVATIONS, time_limit=300)
    def sweep_reservations() -> None:
        """Releases the reservations of processes that are gone. What fails, the next sweep does."""
        try:
            holding = runtime.run(_sweep(runtime))
        except RedisError as error:
            log.warning("reservations are released by the next sweep", error=str(error))
        else:
            log.debug("open reservations counted", tenants=holding)


async def _sweep(runtime: Runtime) -> int:
    return await ReservationSweep(runtime.redis).sweep()
