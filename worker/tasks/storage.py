"""What nobody needs any more: expired files and uploads, objects without a row, deleted adapters.

In the queue of jobs: a store may take its time, and metering must not wait for it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from celery import Celery

from adapters.deletion import purge_deleted, sweep_copies
from adapters.files.sweeping import sweep
from adapters.storage import StorageUnavailable
from db.errors import DatabaseUnavailable
from db.tasks import PURGE_DELETED, SWEEP_STORAGE
from worker.runtime import Runtime

logger = logging.getLogger(__name__)


def register(app: Celery, runtime: Runtime) -> None:
    @app.task(name=SWEEP_STORAGE, time_limit=3000)
    def sweep_storage() -> None:
        """Remove expired files and uploads, and objects that no row names."""
        _run(runtime, _sweep)

    @app.task(name=PURGE_DELETED, time_limit=3000)
    def purge() -> None:
        """Remove what is left of adapters deleted a while ago."""
        _run(runtime, _purge)


def _run(runtime: Runtime, work: Callable[[Runtime], Awaitable[int]]) -> None:
    async def once() -> int:
        return await work(runtime)

    try:
        removed = runtime.run(once())
    except (DatabaseUnavailable, StorageUnavailable) as error:
        logger.warning("what is left over waits for the next sweep: %s", error)
    else:
        if removed:
            logger.info("removed from the object store: %d", removed)


async def _sweep(runtime: Runtime) -> int:
    now = datetime.now(UTC)
    report = await sweep(runtime.database, runtime.store, now)
    removed = report.expired_files + report.parts + report.orphans + report.partial_files
    return removed + await sweep_copies(runtime.database, runtime.store, now)


async def _purge(runtime: Runtime) -> int:
    assert runtime.jobs is not None, "a worker without jobs listens to no queue of jobs"
    return await purge_deleted(runtime.database, runtime.store, runtime.jobs.artifacts_dir, datetime.now(UTC))
