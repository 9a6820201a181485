"""Queries the table of jobs: one tenant's for the API, and by id for the workers, which serve every tenant.

A worker's writes start with `JobLeases.hold`, which locks the job's row if the worker's lease is still the
latest. Lease times are the database's, so that workers' clocks need not agree.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Row, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from adapters.events import Level, record
from adapters.jobs.models import PENDING_UPLOADS, Job, JobStatus
from adapters.models import Adapter, AdapterVersion
from adapters.object_keys import GIVEN_FILES
from db.cursors import fetch_page
from db.repository import TenantRepository
from tenants.models import Tenant

UNFINISHED = (JobStatus.QUEUED, JobStatus.RUNNING)
"""A worker has the job, or should have it."""
WAITING = (JobStatus.VALIDATING_FILES, JobStatus.PAUSED)
"""No worker may take the job."""
OPEN = (*UNFINISHED, *WAITING)


def later(seconds: float) -> ColumnElement[datetime]:
    """Returns the time so many seconds from now, by the database's clock."""
    return func.clock_timestamp() + timedelta(seconds=seconds)


def record_job_event(
    session: AsyncSession,
    job: Job,
    event_type: str,
    message: str,
    *,
    level: Level = "info",
    data: dict[str, Any] | None = None,
) -> None:
    """Records an event of a job."""
    record(
        session,
        job.tenant_id,
        job.adapter_id,
        event_type,
        message,
        version=job.version,
        job_id=job.id,
        level=level,
        data=data,
    )


class JobRepository(TenantRepository):
    """One tenant's jobs."""

    async def find(self, job_id: str, *, lock: bool = False) -> Job | None:
        """Finds a job. `lock`: locked until the transaction ends."""
        query = self.select_own(Job).where(Job.id == job_id)
        return (await self.session.execute(query.with_for_update() if lock else query)).scalar_one_or_none()

    async def page(
        self, *, after: str | None, limit: int, newest_first: bool = True, adapter_id: str | None = None
    ) -> list[Job]:
        """Returns at most `limit` jobs, after the job `after`."""
        listed = self.select_own(Job)
        filters = () if adapter_id is None else (Job.adapter_id == adapter_id,)
        page = await fetch_page(
            self.session, listed, Job.id, *filters, after=after, limit=limit, newest_first=newest_first
        )
        return list(page.scalars())

    async def open_job_of(self, adapter_id: str, version: int) -> Job | None:
        """Returns the version's job that has not ended."""
        query = self.select_own(Job).where(
            Job.adapter_id == adapter_id, Job.version == version, Job.status.in_(OPEN)
        )
        return (await self.session.execute(query.limit(1))).scalar_one_or_none()

    async def open_jobs_of(self, adapter_id: str, version: int | None) -> list[Job]:
        """Returns the jobs of a version, or of all versions, that have not ended, locked."""
        query = self.select_own(Job).where(Job.adapter_id == adapter_id, Job.status.in_(OPEN))
        if version is not None:
            query = query.where(Job.version == version)
        return list((await self.session.execute(query.order_by(Job.id).with_for_update())).scalars())

    async def awaiting(self, upload_id: str, *, lock: bool = False) -> list[Job]:
        """Returns jobs whose versions wait for the upload, paused ones included."""
        query = self.select_own(Job).where(Job.status.in_(WAITING), _awaits(upload_id))
        query = query.order_by(Job.id)
        return list((await self.session.execute(query.with_for_update() if lock else query)).scalars())

    async def adapters(self, adapter_ids: Collection[str]) -> list[Adapter]:
        """Returns those of the adapters that are not deleted."""
        query = self.select_own(Adapter).where(Adapter.id.in_(adapter_ids), Adapter.deleted_at.is_(None))
        return list((await self.session.execute(query)).scalars())

    async def lock_version(self, adapter_id: str, version: int) -> AdapterVersion | None:
        query = self.select_own(AdapterVersion).where(
            AdapterVersion.adapter_id == adapter_id, AdapterVersion.version == version
        )
        return (await self.session.execute(query.with_for_update())).scalar_one_or_none()


@dataclass(frozen=True, slots=True)
class Beat:
    """A worker's report on its job, and for how long it extends its lease."""

    lease_seconds: float | None = None
    """None: the lease is not extended."""
    phase: str | None = None
    progress: float | None = None
    finish_in: float | None = None
    """Estimated seconds the rest takes."""


class JobLeases:
    """Jobs of any tenant, as the workers see them."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def claim(
        self, job_id: str, owner: str, seconds: float, *, owner_gone: str | None = None
    ) -> Job | None:
        """Takes the job, if it is unfinished and free: not leased, its lease expired, or leased to
        `owner_gone`, which the caller knows to be dead. Of concurrent callers, one gets it.
        """
        free = or_(
            Job.lease_owner.is_(None),
            Job.lease_until < func.clock_timestamp(),
            Job.lease_owner == owner_gone,
        )
        claimed = (
            update(Job)
            .where(Job.id == job_id, Job.status.in_(UNFINISHED), free)
            .values(
                fence=Job.fence + 1,
                lease_owner=owner,
                lease_until=later(seconds),
                attempts=Job.attempts + 1,
                status=JobStatus.RUNNING,
                started_at=func.coalesce(Job.started_at, func.now()),
            )
            .returning(Job)
        )
        return (await self._session.execute(claimed)).scalar_one_or_none()

    async def awaiting(self, after: str, limit: int) -> list[Job]:
        """Returns jobs whose versions wait for uploads, paused ones included, after the job `after`."""
        query = select(Job).where(
            Job.status.in_(WAITING), Job.parameters.has_key(PENDING_UPLOADS), Job.id > after
        )
        return list((await self._session.execute(query.order_by(Job.id).limit(limit))).scalars())

    async def owner(self, job_id: str) -> str | None:
        """Returns the owner of the job's lease, alive or not."""
        query = select(Job.lease_owner).where(Job.id == job_id, Job.status == JobStatus.RUNNING)
        return (await self._session.execute(query)).scalar_one_or_none()

    async def hold(self, job_id: str, fence: int) -> Job | None:
        """Returns the job, locked until the transaction ends; None when the lease is no longer the latest."""
        query = select(Job).where(Job.id == job_id, Job.fence == fence, Job.status == JobStatus.RUNNING)
        return (await self._session.execute(query.with_for_update())).scalar_one_or_none()

    async def beat(self, job_id: str, fence: int, beat: Beat) -> tuple[str | None] | None:
        """Writes a heartbeat; returns what the tenant wants, in a tuple of one. None when the lease
        is lost.
        """
        ours = (Job.id == job_id, Job.fence == fence, Job.status == JobStatus.RUNNING)
        values: dict[str, Any] = {}
        if beat.lease_seconds is not None:
            values["lease_until"] = later(beat.lease_seconds)
        if beat.phase is not None:
            values |= {"phase": beat.phase, "progress": beat.progress}
            values["estimated_finish_at"] = None if beat.finish_in is None else later(beat.finish_in)
        query = update(Job).where(*ours).values(values).returning(Job.wanted) if values else None
        answer = await self._session.execute(select(Job.wanted).where(*ours) if query is None else query)
        row = answer.one_or_none()
        return None if row is None else (row[0],)

    async def lock_overdue(self, limit: int) -> Sequence[Job]:
        """Returns unfinished jobs without a valid lease whose message should have been taken long ago. Jobs
        that another sweep has locked are skipped.
        """
        query = (
            select(Job)
            .where(Job.status.in_(UNFINISHED))
            .where(or_(Job.lease_until.is_(None), Job.lease_until < func.clock_timestamp()))
            .order_by(Job.lease_until)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        return (await self._session.execute(query)).scalars().all()


class AllTenantsJobs:
    """Jobs of all tenants, for the operator. The session's scope is every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def page(
        self, statuses: Collection[JobStatus], *, after: str | None, limit: int
    ) -> Sequence[Row[Job, str, str]]:
        """Returns jobs, their tenants' and their adapters' names, newest first."""
        query = (
            select(Job, Tenant.name, Adapter.name)
            .join(Tenant, Tenant.id == Job.tenant_id)
            .join(Adapter, Adapter.id == Job.adapter_id)
            .where(Job.status.in_(statuses))
        )
        if after is not None:
            query = query.where(Job.id < after)
        return (await self._session.execute(query.order_by(Job.id.desc()).limit(limit))).all()

    async def counts(self) -> dict[str, int]:
        """Returns the number of jobs by status."""
        query = select(Job.status, func.count()).group_by(Job.status)
        return {status: int(count) for status, count in (await self._session.execute(query)).tuples()}

    async def oldest_wait(self) -> float:
        """Returns for how many seconds a job has waited for its first attempt while none was begun; 0 without
        one that waits.
        """
        is_new = Job.status == JobStatus.QUEUED, Job.attempts == 0
        since = func.greatest(func.min(Job.created_at).filter(*is_new), func.max(Job.started_at))
        waited = func.extract("epoch", func.now() - since)
        query = select(waited, func.count().filter(*is_new)).where(Job.status.in_(UNFINISHED))
        seconds, waiting = (await self._session.execute(query)).one()
        return float(seconds) if waiting else 0.0

    async def owner(self, job_id: str) -> str | None:
        query = select(Job.tenant_id).where(Job.id == job_id)
        return (await self._session.execute(query)).scalar_one_or_none()


def _awaits(upload_id: str) -> ColumnElement[bool]:
    either = [Job.parameters[PENDING_UPLOADS][name].as_string() == upload_id for name in GIVEN_FILES]
    return or_(*either)
