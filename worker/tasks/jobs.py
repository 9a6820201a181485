"""Runs jobs on adapters, and runs them again when their worker is gone."""

from __future__ import annotations

import structlog
from celery import Celery

from adapters.jobs.requeue import requeue_overdue
from db.errors import DatabaseUnavailable
from db.tasks import RUN_JOB
from worker.app import SWEEP_JOBS
from worker.runtime import Runtime

log = structlog.get_logger(__name__)


def register(app: Celery, runtime: Runtime) -> None:
    @app.task(name=RUN_JOB)
    def run_job(job_id: str) -> None:
        """Runs a job unless it is leased or has ended. Errors are stored in its row; a duplicate message does
        nothing.
        """
        try:
            runtime.run(runtime.run_job(job_id))
        except DatabaseUnavailable as error:
            log.warning("job is left to the next sweep", job_id=job_id, error=str(error))

    @app.task(name=SWEEP_JOBS, time_limit=300)
    def sweep_jobs() -> None:
        """Queues jobs again whose worker or message was lost."""
        try:
            found = runtime.run(_sweep(runtime))
        except DatabaseUnavailable as error:
            log.warning("lost jobs are queued again by the next sweep", error=str(error))
        else:
            if found:
                log.info("lost jobs queued again", jobs=found)


async def _sweep(runtime: Runtime) -> int:
    found = await requeue_overdue(runtime.database, runtime.outbox)
    await runtime.outbox.settle()
    return found
