"""Jobs whose worker died or whose message was lost, put into the queue again.

Run every few seconds by the workers' schedule. Owns nothing but that: who takes such a job, and whether it
has been tried too often, is decided where it is claimed.
"""

from __future__ import annotations

from adapters.jobs.models import JobStatus
from adapters.jobs.repository import JobLeases, later, tell
from db.outbox import Outbox
from db.session import EVERY_TENANT, Database
from db.tasks import RUN_JOB, RUN_JOB_EXPIRES

LIMIT = 100


async def requeue_overdue(database: Database, outbox: Outbox) -> int:
    """Send messages for jobs that nobody works on; how many. Raises DatabaseUnavailable."""
    async with database.write(EVERY_TENANT) as session:
        jobs = await JobLeases(session).lock_overdue(LIMIT)
        for job in jobs:
            if job.lease_owner is not None:
                message = "The worker that had the job is gone; another one goes on with it."
                tell(session, job, "job.worker_lost", message, level="warning")
            job.lease_owner = None
            job.lease_until = later(RUN_JOB_EXPIRES)  # type: ignore[assignment]  # SQL, like any value of a row
            job.status = JobStatus.QUEUED
            outbox.add(session, RUN_JOB, {"job_id": job.id})
    return len(jobs)
