"""Queues jobs again whose worker died or whose message was lost.

Run every few seconds by the workers' schedule. The claim decides which worker takes a job and whether it has
been attempted too often.
"""

from __future__ import annotations

from adapters.jobs.models import JobStatus
from adapters.jobs.repository import JobLeases, later, record_job_event
from db.outbox import Outbox
from db.session import EVERY_TENANT, Database
from db.tasks import RUN_JOB, RUN_JOB_EXPIRES

LIMIT = 100


async def requeue_overdue(database: Database, outbox: Outbox) -> int:
    """Sends messages for jobs without a worker; returns how many. Raises DatabaseUnavailable."""
    async with database.write(EVERY_TENANT) as session:
        jobs = await JobLeases(session).lock_overdue(LIMIT)
        for job in jobs:
            if job.lease_owner is not None:
                message = "The worker of the job was lost; another one continues it."
                record_job_event(session, job, "job.worker_lost", message, level="warning")
            job.lease_owner = None
            job.lease_until = later(RUN_JOB_EXPIRES)  # type: ignore[assignment]  # SQL, like any value of a row
            job.status = JobStatus.QUEUED
            outbox.add(session, RUN_JOB, {"job_id": job.id})
    return len(jobs)
