"""Runs one attempt at a job, from the claimed lease to its outcome.

Decides what every outcome means for the job's row: done, failed, cancelled, paused, handed back, or retried
later. The work itself is done by a `Pipeline`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

import structlog

from adapters.jobs.errors import JobFailed, LeaseLost, VersionDeleted
from adapters.jobs.lease import Interrupted, Lease, LeaseTransaction
from adapters.jobs.models import JobStatus
from adapters.jobs.repository import JobRepository, later
from adapters.jobs.service import cancel, fail, pause
from adapters.storage.errors import StorageUnavailable
from db.errors import DatabaseUnavailable
from db.outbox import Outbox
from db.session import WriteSession
from db.tasks import RUN_JOB

log = structlog.get_logger(__name__)
T = TypeVar("T")

MAX_ATTEMPTS = 5
FIRST_PAUSE = 2.0
"""Seconds before the second attempt; doubled for every further one."""
PATIENCE = 120.0
"""Seconds to wait for an unavailable database or object store in the middle of a job."""


class Pipeline(Protocol):
    """The work of a job."""

    async def run(self, lease: Lease) -> None:
        """Does all of it, up to the completed job. Parts may have been done by an earlier attempt.

        Raises JobFailed for a failure that the tenant should see, VersionDeleted; may be cancelled anywhere.
        """
        ...

    def announce(self, session: WriteSession, tenant_id: str) -> None:
        """Announces, after the commit, that a version of the tenant has changed."""
        ...


async def attempt(
    lease: Lease, pipeline: Pipeline, outbox: Outbox, *, max_attempts: int = MAX_ATTEMPTS
) -> None:
    """Runs the job once and records the outcome. Raises only after a bug or a long outage."""
    job = lease.job
    end = partial(_end, lease, pipeline)
    try:
        if job.attempts > max_attempts:
            raise JobFailed("too_many_attempts", f"The job did not finish in {max_attempts} attempts.")
        await lease.run(pipeline.run(lease))
    except LeaseLost as lost:
        log.warning("lease of a job is lost", job_id=lost.job_id, fence=lost.fence)
    except Interrupted as interrupted:
        await end(_interruption(interrupted, outbox))
    except VersionDeleted:
        await end(_cancelled)
    except JobFailed as failure:
        await end(partial(_failed, failure=failure))
    except (DatabaseUnavailable, StorageUnavailable) as error:
        log.warning("job is retried later", job_id=job.id, error=str(error))
        await end(partial(_put_off, reason=str(error)))
    except Exception as error:
        log.exception("attempt of a job failed", job_id=job.id, attempt=job.attempts)
        if job.attempts >= max_attempts:
            poison = JobFailed("internal_error", "The job failed repeatedly because of a server error.")
            await end(partial(_failed, failure=poison))
        else:
            reason = f"Attempt {job.attempts} failed ({type(error).__name__})."
            await end(partial(_put_off, reason=reason))


async def retry_unavailable(action: Callable[[], Awaitable[T]], seconds: float = PATIENCE) -> T:
    """Returns what `action` returns; retries it while the database or the object store is unavailable."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    pause = 0.25
    while True:
        try:
            return await action()
        except (DatabaseUnavailable, StorageUnavailable) as error:
            if loop.time() + pause > deadline:
                raise
            log.warning("a job waits for a service", seconds=pause, error=str(error))
        await asyncio.sleep(pause)
        pause = min(2 * pause, 5.0)


async def _end(
    lease: Lease, pipeline: Pipeline, write: Callable[[LeaseTransaction], Awaitable[None]]
) -> None:
    async def once() -> None:
        async with lease.give_up() as held:
            await write(held)
            if held.job.status in (JobStatus.CANCELLED, JobStatus.FAILED):
                pipeline.announce(held.session, held.job.tenant_id)

    try:
        await retry_unavailable(once)
    except LeaseLost as lost:
        log.warning("lease of a job is lost", job_id=lost.job_id, fence=lost.fence)


def _interruption(interrupted: Interrupted, outbox: Outbox) -> Callable[[LeaseTransaction], Awaitable[None]]:
    if interrupted.reason == "cancel":
        return _cancelled
    if interrupted.reason == "pause":
        return partial(_paused, outbox=outbox)
    return partial(_given_back, outbox=outbox)


async def _cancelled(held: LeaseTransaction) -> None:
    jobs = JobRepository(held.session, held.job.tenant_id)
    cancel(held.session, held.job, await jobs.lock_version(held.job.adapter_id, held.job.version))


async def _failed(held: LeaseTransaction, failure: JobFailed) -> None:
    jobs = JobRepository(held.session, held.job.tenant_id)
    version = await jobs.lock_version(held.job.adapter_id, held.job.version)
    fail(held.session, held.job, version, failure)


async def _paused(held: LeaseTransaction, outbox: Outbox) -> None:
    """Follows what the tenant wants by now: the job may have been resumed or cancelled during the
    interruption.
    """
    if held.job.wanted == "cancel":
        await _cancelled(held)
    elif held.job.wanted == "pause":
        pause(held.session, held.job)
    else:
        _requeue(held, outbox)


async def _given_back(held: LeaseTransaction, outbox: Outbox) -> None:
    """Returns the job to the queue because the worker stops; another one takes it at once."""
    if held.job.wanted is not None:
        await _paused(held, outbox)
        return
    _requeue(held, outbox)
    held.record_event("job.handed_over", "The worker of the job was stopped; another one continues it.")


def _requeue(held: LeaseTransaction, outbox: Outbox) -> None:
    """Returns the job to the queue at once; the attempt does not count."""
    held.job.status = JobStatus.QUEUED
    held.job.attempts -= 1
    held.job.lease_until = later(5)  # type: ignore[assignment]  # SQL, like any value of a row
    outbox.add(held.session, RUN_JOB, {"job_id": held.job.id})


async def _put_off(held: LeaseTransaction, reason: str) -> None:
    """Returns the job to the queue; the sweep sends it again after a pause that grows."""
    seconds = FIRST_PAUSE * 2 ** min(held.job.attempts - 1, 6)
    held.job.status = JobStatus.QUEUED
    held.job.lease_until = later(seconds)  # type: ignore[assignment]  # SQL, like any value of a row
    held.record_event(
        "job.put_off", f"{reason} Another attempt follows in about {seconds:.0f} s.", level="warning"
    )
