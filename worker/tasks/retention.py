"""Deletes what organizations' periods say is over, and certifies deletions.

Rows in the queue of short tasks, so that they go within minutes; objects and certificates in the queue of
jobs, whose workers have the object store and the key secret.
"""

from __future__ import annotations

import structlog
from celery import Celery

from db.errors import DatabaseUnavailable
from db.tasks import SETTLE_DELETIONS
from retention.certifying import Certifier
from retention.objects import delete_owed_objects
from retention.signing import CertificateSigner
from retention.sweep import ClocksDiffer, RetentionSweep
from tenants.settings import TenantSettings
from worker.app import APPLY_RETENTION, DELETE_EXPIRED
from worker.runtime import Runtime

log = structlog.get_logger(__name__)


def register(app: Celery, runtime: Runtime) -> None:
    @app.task(name=DELETE_EXPIRED, time_limit=300)
    def delete_expired() -> None:
        """Deletes what has a time of its own that is over. What fails, the next run does."""
        _run(runtime, only_expired=True)

    @app.task(name=APPLY_RETENTION, time_limit=1800)
    def apply_retention() -> None:
        """Deletes what is older than the organizations' periods. What fails, the next run does."""
        _run(runtime, only_expired=False)

    @app.task(name=SETTLE_DELETIONS, time_limit=1800)
    def settle_deletions() -> None:
        """Deletes the objects that are owed, and issues certificates. What fails, the next run does."""
        try:
            removed, certified = runtime.run(_settle(runtime))
        except DatabaseUnavailable as error:
            log.warning("deletions are settled later", error=str(error))
        else:
            if removed or certified:
                log.info("deletions settled", objects=removed, certificates=certified)


def _run(runtime: Runtime, *, only_expired: bool) -> None:
    try:
        runtime.run(_sweep(runtime, only_expired=only_expired))
    except DatabaseUnavailable as error:
        log.warning("retention is applied by the next run", error=str(error))
    except ClocksDiffer as error:
        log.error("retention is not applied", error=str(error))


# The runtime's services exist once its loop runs.
async def _sweep(runtime: Runtime, *, only_expired: bool) -> int:
    sweep = RetentionSweep(runtime.database, runtime.retention)
    return await (sweep.run_expired() if only_expired else sweep.run())


async def _settle(runtime: Runtime) -> tuple[int, int]:
    removed = await delete_owed_objects(runtime.database, runtime.store)
    signer = CertificateSigner(TenantSettings().key_secrets())  # type: ignore[call-arg]
    return removed, await Certifier(runtime.database, signer, runtime.retention).run()
