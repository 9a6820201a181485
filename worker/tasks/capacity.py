"""Samples the use of the service's resources, and asks the planner what would help."""

from __future__ import annotations

import structlog
from celery import Celery
from redis.exceptions import RedisError

from db.errors import DatabaseUnavailable
from worker.app import PLAN_CAPACITY, SAMPLE_CAPACITY
from worker.runtime import Runtime

log = structlog.get_logger(__name__)


def register(app: Celery, runtime: Runtime) -> None:
    @app.task(name=SAMPLE_CAPACITY, time_limit=120)
    def sample_capacity() -> None:
        """A sample that cannot be taken is missing from its hour."""
        try:
            runtime.run(_sample(runtime))
        except (DatabaseUnavailable, RedisError) as error:
            log.warning("no sample of the capacity", error=str(error))

    @app.task(name=PLAN_CAPACITY, time_limit=300)
    def plan_capacity() -> None:
        """Plans of before stay until there are others."""
        try:
            runtime.run(plan(runtime))
        except (DatabaseUnavailable, RedisError) as error:
            log.warning("the capacity is not planned", error=str(error))


async def _sample(runtime: Runtime) -> None:
    await runtime.capacity.sample()


async def plan(runtime: Runtime) -> None:
    """Raises RedisError, DatabaseUnavailable."""
    # The planner needs NumPy and models' shapes, which no other task of this queue does.
    from worker.capacity_advice import advise

    engines, peaks = await runtime.capacity.loads()
    await runtime.capacity.keep_advice({base: advise(own, peaks[base]) for base, own in engines.items()})
