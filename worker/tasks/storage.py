"""Removes parts of ended uploads, orphaned objects and deleted adapters, and settles awaited uploads.

In the queue of jobs: object storage may be slow, and metering must not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import structlog
from celery import Celery

from adapters.announcer import Announcer
from adapters.deletion import purge_deleted, sweep_copies
from adapters.files.cleanup import sweep
from adapters.files.service import FileService
from adapters.files.uploads import UploadService
from adapters.inspection.sandbox import Sandbox
from adapters.pending_uploads import PendingUploads
from adapters.signing.uploads import UploadSignatures
from adapters.source_copies import SourceCopies
from adapters.storage import StorageUnavailable
from db.errors import DatabaseUnavailable
from db.tasks import PURGE_DELETED, SETTLE_UPLOADS, SWEEP_STORAGE
from worker.runtime import Runtime

log = structlog.get_logger(__name__)


def register(app: Celery, runtime: Runtime) -> None:
    @app.task(name=SWEEP_STORAGE, time_limit=3000)
    def sweep_storage() -> None:
        """Ends expired uploads, and removes their parts and objects that no row names."""
        _run(runtime, _sweep, "files and objects removed", "storage is swept again later")

    @app.task(name=PURGE_DELETED, time_limit=3000)
    def purge() -> None:
        """Removes what is left of adapters deleted a while ago."""
        _run(runtime, _purge, "deleted adapters purged", "deleted adapters are purged later")

    @app.task(name=SETTLE_UPLOADS, time_limit=300)
    def settle_uploads() -> None:
        """Starts versions whose uploads are all completed, and fails those whose uploads never will be."""
        done = "versions whose uploads have settled"
        _run(runtime, _settle, done, "versions still wait for their uploads")


def _run(
    runtime: Runtime, work: Callable[[Runtime], Coroutine[Any, Any, int]], done: str, put_off: str
) -> None:
    try:
        count = runtime.run(work(runtime))
    except (DatabaseUnavailable, StorageUnavailable) as error:
        log.warning(put_off, error=str(error))
    else:
        if count:
            log.info(done, count=count)


async def _sweep(runtime: Runtime) -> int:
    now = datetime.now(UTC)
    report = await sweep(runtime.database, runtime.store, now)
    removed = report.parts + report.orphans + report.partial_files
    return removed + await sweep_copies(runtime.database, runtime.store, now)


async def _purge(runtime: Runtime) -> int:
    assert runtime.jobs is not None, "a worker without jobs listens to no queue of jobs"
    return await purge_deleted(runtime.database, runtime.store, runtime.jobs.artifacts_dir, datetime.now(UTC))


async def _settle(runtime: Runtime) -> int:
    assert runtime.jobs is not None, "a worker without jobs listens to no queue of jobs"
    configs = {base.name: base.path / "config.json" for base in runtime.bases}
    sandbox = Sandbox()  # starts when there is something to inspect
    files = FileService(runtime.database, runtime.store, sandbox)
    waiting = PendingUploads(
        runtime.database,
        Announcer(runtime.redis),
        UploadService(runtime.database, runtime.store, sandbox),
        SourceCopies(
            runtime.store, files, sandbox, UploadSignatures(runtime.database, runtime.store), configs
        ),
        runtime.outbox,
    )
    try:
        ended = await waiting.settle()
    finally:
        await sandbox.close()
    await runtime.outbox.settle()
    return ended
