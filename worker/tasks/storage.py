"""What nobody needs any more: expired files and uploads, objects without a row, deleted adapters.
And versions waiting for files that have come or will not.

In the queue of jobs: a store may take its time, and metering must not wait for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

from celery import Celery

from adapters.announcer import Announcer
from adapters.deletion import purge_deleted, sweep_copies
from adapters.files.cleanup import sweep
from adapters.files.service import FileService
from adapters.files.uploads import UploadService
from adapters.inspection import Sandbox
from adapters.pending_uploads import PendingUploads
from adapters.source_copies import SourceCopies
from adapters.storage import StorageUnavailable
from db.errors import DatabaseUnavailable
from db.tasks import PURGE_DELETED, SETTLE_UPLOADS, SWEEP_STORAGE
from worker.runtime import Runtime

logger = logging.getLogger(__name__)


def register(app: Celery, runtime: Runtime) -> None:
    @app.task(name=SWEEP_STORAGE, time_limit=3000)
    def sweep_storage() -> None:
        """Remove expired files and uploads, and objects that no row names."""
        _run(runtime, _sweep, "files and objects removed", "what is left over waits for the next sweep")

    @app.task(name=PURGE_DELETED, time_limit=3000)
    def purge() -> None:
        """Remove what is left of adapters deleted a while ago."""
        _run(runtime, _purge, "deleted adapters purged", "deleted adapters wait for the next purge")

    @app.task(name=SETTLE_UPLOADS, time_limit=300)
    def settle_uploads() -> None:
        """Start versions whose uploads are all completed, and fail those that wait for one in vain."""
        done = "versions that waited for their files go on or have failed"
        _run(runtime, _settle, done, "versions go on waiting for their files")


def _run(
    runtime: Runtime, work: Callable[[Runtime], Coroutine[Any, Any, int]], done: str, put_off: str
) -> None:
    try:
        count = runtime.run(work(runtime))
    except (DatabaseUnavailable, StorageUnavailable) as error:
        logger.warning("%s: %s", put_off, error)
    else:
        if count:
            logger.info("%s: %d", done, count)


async def _sweep(runtime: Runtime) -> int:
    now = datetime.now(UTC)
    report = await sweep(runtime.database, runtime.store, now)
    removed = report.expired_files + report.parts + report.orphans + report.partial_files
    return removed + await sweep_copies(runtime.database, runtime.store, now)


async def _purge(runtime: Runtime) -> int:
    assert runtime.jobs is not None, "a worker without jobs listens to no queue of jobs"
    return await purge_deleted(runtime.database, runtime.store, runtime.jobs.artifacts_dir, datetime.now(UTC))


async def _settle(runtime: Runtime) -> int:
    assert runtime.jobs is not None, "a worker without jobs listens to no queue of jobs"
    sandbox = Sandbox()  # which starts when there is something to inspect
    files = FileService(runtime.database, runtime.store, sandbox)
    waiting = PendingUploads(
        runtime.database,
        Announcer(runtime.redis),
        UploadService(runtime.database, runtime.store, sandbox),
        SourceCopies(runtime.store, files, sandbox, runtime.jobs.base_path / "config.json"),
        runtime.outbox,
    )
    try:
        ended = await waiting.settle()
    finally:
        await sandbox.close()
    await runtime.outbox.settle()
    return ended
