"""Serves a tenant's jobs: reads, cancels, pauses, resumes and retries them. Every method is one transaction.

A job without a worker changes at once; for one that a worker holds, the request is stored (`jobs.wanted`),
and the worker follows it within a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from sqlalchemy import func

from adapters.events import POLL_INTERVAL, EventRepository, Tail
from adapters.jobs.errors import JobFailed, JobFinished, JobNotFound, JobUnfinished
from adapters.jobs.models import CREDENTIALS, IMPORT, PENDING_UPLOADS, Job, JobStatus
from adapters.jobs.repository import OPEN, JobRepository, later, record_job_event
from adapters.model_names import ModelName
from adapters.models import PENDING, AdapterEvent, AdapterVersion, VersionState
from db.base import new_id
from db.outbox import Outbox
from db.session import Database, ReadSession, WriteSession
from db.tasks import RUN_JOB, RUN_JOB_EXPIRES
from tenants.actors import SYSTEM, Actor
from tenants.audit.service import AuditLog

NEEDS_CREDENTIALS = "needs_credentials"
"""Name of the field of an import that says that its credentials are removed."""
CANCELLED = "The job was cancelled before the version was ready."


async def queue_job(
    session: WriteSession,
    outbox: Outbox,
    *,
    tenant_id: str,
    adapter_id: str,
    version: int,
    parameters: dict[str, Any],
    created_by: str | None,
) -> Job:
    """Adds a job to the transaction that creates, or has locked, its version. A job whose parameters name
    uploads waits until it is queued by `enqueue`.

    Raises JobUnfinished when the version has one.
    """
    jobs = JobRepository(session, tenant_id)
    unfinished = await jobs.open_job_of(adapter_id, version)
    if unfinished is not None:
        raise JobUnfinished(unfinished.id)
    job = Job(
        id=new_id("job"),
        tenant_id=tenant_id,
        adapter_id=adapter_id,
        version=version,
        status=JobStatus.VALIDATING_FILES,
        parameters=parameters,
        created_by=created_by,
    )
    jobs.add_own(job)
    if PENDING_UPLOADS in parameters:
        record_job_event(session, job, "job.created", "The job waits for the files to be uploaded.")
    else:
        message = (
            "The job is queued; a worker imports its files." if IMPORT in parameters else "The job is queued."
        )
        record_job_event(session, job, "job.created", message)
        enqueue(session, outbox, job)
    return job


def enqueue(session: WriteSession, outbox: Outbox, job: Job) -> None:
    """Queues the job for a worker; if the message is lost, the sweep sends another."""
    job.status = JobStatus.QUEUED
    job.lease_owner = None
    job.lease_until = later(RUN_JOB_EXPIRES)  # type: ignore[assignment]  # SQL, like any value of a row
    outbox.add(session, RUN_JOB, {"job_id": job.id})


Announce = Callable[[WriteSession, str], None]
"""Announces, after the commit, that the models of a tenant have changed."""


class JobService:
    """Tenants' jobs, as the API shows them."""

    def __init__(self, database: Database, outbox: Outbox, announce: Announce) -> None:
        self._database = database
        self._outbox = outbox
        self._announce = announce

    async def get(self, tenant_id: str, job_id: str) -> Job:
        """Returns a job. Raises JobNotFound."""
        async with self._database.read(tenant_id) as session:
            return await _found(session, tenant_id, job_id)

    async def page(
        self,
        tenant_id: str,
        *,
        after: str | None = None,
        limit: int = 20,
        newest_first: bool = True,
        adapter_id: str | None = None,
    ) -> tuple[list[Job], bool]:
        """Returns a page, and whether there are more after it. Raises UnknownCursor."""
        async with self._database.read(tenant_id) as session:
            jobs = await JobRepository(session, tenant_id).page(
                after=after, limit=limit + 1, newest_first=newest_first, adapter_id=adapter_id
            )
        return jobs[:limit], len(jobs) > limit

    async def models_of(self, tenant_id: str, jobs: Sequence[Job]) -> dict[str, str]:
        """Returns by job id the pinned model name of its version; without deleted adapters."""
        async with self._database.read(tenant_id) as session:
            found = await JobRepository(session, tenant_id).adapters({job.adapter_id for job in jobs})
        by_id = {adapter.id: adapter for adapter in found}
        return {
            job.id: str(ModelName(adapter.base, adapter.name, job.version))
            for job in jobs
            if (adapter := by_id.get(job.adapter_id)) is not None
        }

    async def events(
        self,
        tenant_id: str,
        job_id: str,
        *,
        after: str | None = None,
        limit: int = 20,
        newest_first: bool = True,
    ) -> tuple[list[AdapterEvent], bool]:
        """Returns a page of the job's events, and whether there are more. Raises JobNotFound,
        UnknownCursor.
        """
        async with self._database.read(tenant_id) as session:
            await _found(session, tenant_id, job_id)
            repository = EventRepository(session, tenant_id)
            if after is not None:
                await repository.require(after, job_id=job_id)
            events = await repository.page(
                job_id=job_id, after=after, limit=limit + 1, newest_first=newest_first
            )
        return events[:limit], len(events) > limit

    async def follow(
        self, tenant_id: str, job_id: str, after: str | None = None
    ) -> AsyncIterator[tuple[Job, list[AdapterEvent]]]:
        """Yields the job and its new events until it has ended; the first item comes at once.

        Holds no connection between two reads. Raises JobNotFound.
        """
        tail = Tail(tenant_id, job_id=job_id, after=after)
        while True:
            async with self._database.read(tenant_id) as session:
                # Read first: what ends the job is committed together with its event.
                job = await _found(session, tenant_id, job_id)
                fresh = await tail.read(session)
            yield job, fresh
            if tail.at_end:
                if job.status not in OPEN:
                    return
                await asyncio.sleep(POLL_INTERVAL)

    async def cancel(self, tenant_id: str, job_id: str, *, by: Actor = SYSTEM) -> Job:
        """Cancels the job; its version fails, unless it was ready before. Raises JobNotFound, JobFinished.

        Cancelling again changes nothing.
        """
        async with self._database.write(tenant_id) as session:
            job = await _found(session, tenant_id, job_id, lock=True)
            if job.status == JobStatus.CANCELLED:
                return job
            _refuse_finished(job)
            if job.lease_owner is None:
                version = await JobRepository(session, tenant_id).lock_version(job.adapter_id, job.version)
                cancel(session, job, version)
                self._announce(session, tenant_id)
            elif job.wanted != "cancel":
                job.wanted = "cancel"
                record_job_event(session, job, "job.cancel_requested", "The job is being cancelled.")
            return await _as_written(session, job, by, "cancelled")

    async def pause(self, tenant_id: str, job_id: str, *, by: Actor = SYSTEM) -> Job:
        """Pauses the job, to be resumed where it stopped. Raises JobNotFound, JobFinished."""
        async with self._database.write(tenant_id) as session:
            job = await _found(session, tenant_id, job_id, lock=True)
            _refuse_finished(job)
            if job.status == JobStatus.PAUSED or job.wanted is not None:
                return job
            if job.lease_owner is None:
                pause(session, job)
            else:
                job.wanted = "pause"
                record_job_event(session, job, "job.pause_requested", "The job is being paused.")
            return await _as_written(session, job, by, "paused")

    async def resume(self, tenant_id: str, job_id: str, *, by: Actor = SYSTEM) -> Job:
        """Resumes a paused job; a running one continues. Raises JobNotFound, JobFinished."""
        async with self._database.write(tenant_id) as session:
            job = await _found(session, tenant_id, job_id, lock=True)
            _refuse_finished(job)
            if job.status == JobStatus.PAUSED and PENDING_UPLOADS in job.parameters:
                job.status = JobStatus.VALIDATING_FILES
                record_job_event(session, job, "job.resumed", "The job waits for the files to be uploaded.")
            elif job.status == JobStatus.PAUSED:
                job.attempts = 0
                record_job_event(session, job, "job.resumed", "The job is queued again.")
                enqueue(session, self._outbox, job)
            elif job.wanted == "pause":
                job.wanted = None
                record_job_event(session, job, "job.resumed", "The job continues.")
            return await _as_written(session, job, by, "resumed")

    async def retry(self, tenant_id: str, job_id: str, *, by: Actor) -> Job:
        """Queues a copy of a failed job, on the same version and files. Raises JobNotFound, JobFinished for a
        job that did not fail, whose uploads never came, or whose import needs credentials again;
        JobUnfinished.
        """
        async with self._database.write(tenant_id) as session:
            failed = await _found(session, tenant_id, job_id, lock=True)
            if failed.status in OPEN:
                raise JobUnfinished(failed.id)
            version = await JobRepository(session, tenant_id).lock_version(failed.adapter_id, failed.version)
            gone = version is None or version.state == VersionState.DELETING
            if failed.status != JobStatus.FAILED or gone or _lacks_files(failed):
                raise JobFinished(failed.id, failed.status)
            job = await queue_job(
                session,
                self._outbox,
                tenant_id=tenant_id,
                adapter_id=failed.adapter_id,
                version=failed.version,
                parameters=failed.parameters,
                created_by=failed.created_by,
            )
            assert version is not None
            if version.state == VersionState.FAILED:
                version.state = _state_of_retry(version, job)
                version.error = version.error_field = None
                self._announce(session, tenant_id)
            await session.flush()
            await session.refresh(job)
            target, details = ("job", job.id), {"retry_of": failed.id}
            await AuditLog.record(session, tenant_id, by, "calibration_job.created", target, details)
            return job


def _lacks_files(job: Job) -> bool:
    """Returns whether a copy of the job could not get its files."""
    return PENDING_UPLOADS in job.parameters or NEEDS_CREDENTIALS in job.parameters.get(IMPORT, {})


def _state_of_retry(version: AdapterVersion, job: Job) -> VersionState:
    if IMPORT in job.parameters:
        return VersionState.UPLOADING
    return VersionState.CALIBRATING if version.artifacts else VersionState.VALIDATING


def cancel(session: WriteSession, job: Job, version: AdapterVersion | None) -> None:
    """Ends a locked job, and fails its locked version unless that was ready before."""
    finish(job, JobStatus.CANCELLED)
    record_job_event(session, job, "job.cancelled", "The job was cancelled.")
    if version is not None and version.state in PENDING:
        version.state = VersionState.FAILED
        version.error, version.error_field = CANCELLED, None
        record_job_event(session, job, "version.failed", CANCELLED, level="warning")


def succeed(session: WriteSession, job: Job, result: dict[str, Any]) -> None:
    """Ends a locked job successfully."""
    finish(job, JobStatus.SUCCEEDED)
    job.progress, job.result = 1.0, result
    record_job_event(session, job, "job.succeeded", "The job succeeded.", data=result)


def fail(session: WriteSession, job: Job, version: AdapterVersion | None, failure: JobFailed) -> None:
    """Ends a locked job with an error, and fails its locked version unless that was ready before."""
    finish(job, JobStatus.FAILED)
    job.error = {"code": failure.code, "message": failure.message, "param": failure.param}
    record_job_event(session, job, "job.failed", failure.message, level="error", data=job.error)
    if version is not None and version.state in PENDING:
        version.state = VersionState.FAILED
        version.error, version.error_field = failure.message, failure.param
        record_job_event(session, job, "version.failed", failure.message, level="error", data=job.error)


def pause(session: WriteSession, job: Job) -> None:
    """Takes a locked job out of the queue until it is resumed."""
    job.status = JobStatus.PAUSED
    job.wanted = None
    job.fence += 1
    job.lease_owner = job.lease_until = job.estimated_finish_at = None
    record_job_event(session, job, "job.paused", "The job is paused; finished work is kept.")


def finish(job: Job, status: JobStatus) -> None:
    """Ends a locked job with this status. No worker can continue it, because its fence changes. Removes
    credentials of an import.
    """
    job.status = status
    if CREDENTIALS in job.parameters.get(IMPORT, {}):
        kept = {name: value for name, value in job.parameters[IMPORT].items() if name != CREDENTIALS}
        job.parameters = {**job.parameters, IMPORT: {**kept, NEEDS_CREDENTIALS: True}}
    job.wanted = None
    job.fence += 1
    job.lease_owner = job.lease_until = job.estimated_finish_at = None
    job.finished_at = func.now()  # type: ignore[assignment]  # SQL, like any value of a row


async def _as_written(session: WriteSession, job: Job, by: Actor, what: str) -> Job:
    """Returns the job with the times that the database set. Records in the audit log that it was `what`."""
    await session.flush()
    await session.refresh(job)
    await AuditLog.record(session, job.tenant_id, by, f"calibration_job.{what}", ("job", job.id))
    return job


def _refuse_finished(job: Job) -> None:
    if job.status not in OPEN:
        raise JobFinished(job.id, job.status)


async def _found(
    session: ReadSession | WriteSession, tenant_id: str, job_id: str, *, lock: bool = False
) -> Job:
    job = await JobRepository(session, tenant_id).find(job_id, lock=lock)
    if job is None:
        raise JobNotFound(job_id)
    return job
