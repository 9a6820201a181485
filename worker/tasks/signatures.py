"""Signs versions that lack the platform's signature, and compares stored files with their signatures.

In the queue of jobs: both read object storage, and metering must not wait for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import structlog
from celery import Celery

from adapters.signing.maintenance import SignatureMaintenance
from adapters.storage import StorageUnavailable
from db.errors import DatabaseUnavailable
from db.tasks import CHECK_SIGNATURES, SIGN_VERSIONS
from worker.runtime import Runtime
from worker.signing import build_maintenance

log = structlog.get_logger(__name__)


def register(app: Celery, runtime: Runtime) -> None:
    @app.task(name=SIGN_VERSIONS, time_limit=3000)
    def sign_versions() -> None:
        """Signs versions that were made without a signing key, or before the key was rotated."""
        _run(runtime, lambda one: one.sign_pending(), "versions signed")

    @app.task(name=CHECK_SIGNATURES, time_limit=3000)
    def check_signatures() -> None:
        """Compares the stored files of versions that were not compared for long with their signatures."""
        _run(runtime, lambda one: one.check_due(datetime.now(UTC)), "versions are not what was signed")


def _run(runtime: Runtime, work: Callable[[SignatureMaintenance], Awaitable[int]], done: str) -> None:
    async def once() -> int:
        maintenance = build_maintenance(runtime)
        return 0 if maintenance is None else await work(maintenance)

    try:
        count = runtime.run(once())
    except (DatabaseUnavailable, StorageUnavailable, OSError, ValueError) as error:
        log.warning("signatures are looked at later", error=str(error))
    else:
        if count:
            log.info(done, count=count)
