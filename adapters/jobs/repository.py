"""Queries on jobs: one tenant's for the API, and by id for the workers, who serve every tenant.

A worker's writes begin with `JobLeases.hold`: the row of the job, locked, if the worker's lease is still the
latest. Instants of leases are the database's, so that workers need not agree on the time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Row, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from adapters.events import Level, record
from adapters.jobs.models import AWAITED, Job, JobStatus
from adapters.models import Adapter, AdapterVersion
from adapters.objects import SOURCE_FILES
from db.cursors import page_beyond
from db.repository import TenantRepository
from tenants.models import Tenant

UNFINISHED = (JobStatus.QUEUED, JobStatus.RUNNING)
"""A worker has them, or should have."""
WAITING = (JobStatus.VALIDATING_FILES, JobStatus.PAUSED)
"""No worker shall have them."""
OPEN = (*UNFINISHED, *WAITING)


def later(seconds: float) -> ColumnElement[datetime]:
    """So many seconds from now, by the database's clock."""
    return func.clock_timestamp() + timedelta(seconds=seconds)


def tell(
    session: AsyncSession,
    job: Job,
    event_type: str,
    message: str,
    *,
    level: Level = "info",
    data: dict[str, Any] | None = None,
) -> None:
    """Record what happened to a job."""
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
        """`lock`: held against other writers until the transaction ends."""
        query = self.select_own(Job).where(Job.id == job_id)
        return (await self.session.execute(query.with_for_update() if lock else query)).scalar_one_or_none()

    async def page(
        self, *, after: str | None, limit: int, newest_first: bool = True, adapter_id: str | None = None
    ) -> list[Job]:
        """At most `limit`, beyond the job `after`."""
        listed = self.select_own(Job)
        filters = () if adapter_id is None else (Job.adapter_id == adapter_id,)
        page = await page_beyond(
            self.session, listed, Job.id, *filters, after=after, limit=limit, newest_first=newest_first
        )
        return list(page.scalars())

    async def open_job_of(self, adapter_id: str, version: int) -> Job | None:
        """The version's job that has not ended."""
        query = self.select_own(Job).where(
            Job.adapter_id == adapter_id, Job.version == version, Job.status.in_(OPEN)
        )
        return (await self.session.execute(query.limit(1))).scalar_one_or_none()

    async def open_jobs_of(self, adapter_id: str, version: int | None) -> list[Job]:
        """Locked. Jobs of a version, or of all versions, that have not ended."""
        query = self.select_own(Job).where(Job.adapter_id == adapter_id, Job.status.in_(OPEN))
        if version is not None:
            query = query.where(Job.version == version)
        return list((await self.session.execute(query.order_by(Job.id).with_for_update())).scalars())

    async def awaiting(self, upload_id: str, *, lock: bool = False) -> list[Job]:
        """Jobs whose versions wait for the upload, paused ones too."""
        query = self.select_own(Job).where(Job.status.in_(WAITING), _awaits(upload_id))
        query = query.order_by(Job.id)
        return list((await self.session.execute(query.with_for_update() if lock else query)).scalars())

    async def adapters(self, adapter_ids: Collection[str]) -> list[Adapter]:
        """Those of them that are not deleted."""
        query = self.select_own(Adapter).where(Adapter.id.in_(adapter_ids), Adapter.deleted_at.is_(None))
        return list((await self.session.execute(query)).scalars())

    async def lock_version(self, adapter_id: str, version: int) -> AdapterVersion | None:
        query = self.select_own(AdapterVersion).where(
            AdapterVersion.adapter_id == adapter_id, AdapterVersion.version == version
        )
        return (await self.session.execute(query.with_for_update())).scalar_one_or_none()


@dataclass(frozen=True, slots=True)
class Beat:
    """What a worker tells of its job, and for how long it wants to keep it."""

    lease_seconds: float | None = None
    """None: the lease stays as it is."""
    phase: str | None = None
    progress: float | None = None
    finish_in: float | None = None
    """Seconds the rest will take, as it looks now."""


class JobLeases:
    """Any tenant's jobs, as the workers see them."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def claim(
        self, job_id: str, owner: str, seconds: float, *, owner_gone: str | None = None
    ) -> Job | None:
        """Take the job, if it is unfinished and nobody's: not leased, or no longer, or to `owner_gone`, which
        the caller knows to be dead. Of those who try at once one gets it.
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
        """Jobs whose versions wait for uploads, paused ones too, beyond the job `after`."""
        query = select(Job).where(Job.status.in_(WAITING), Job.parameters.has_key(AWAITED), Job.id > after)
        return list((await self._session.execute(query.order_by(Job.id).limit(limit))).scalars())

    async def owner(self, job_id: str) -> str | None:
        """Who holds the job, alive or not."""
        query = select(Job.lease_owner).where(Job.id == job_id, Job.status == JobStatus.RUNNING)
        return (await self._session.execute(query)).scalar_one_or_none()

    async def hold(self, job_id: str, fence: int) -> Job | None:
        """The job, locked until the transaction ends; None when the lease is not the latest any more."""
        query = select(Job).where(Job.id == job_id, Job.fence == fence, Job.status == JobStatus.RUNNING)
        return (await self._session.execute(query.with_for_update())).scalar_one_or_none()

    async def beat(self, job_id: str, fence: int, beat: Beat) -> tuple[str | None] | None:
        """Write a beat; what the tenant wants of the job, in a tuple of one. None when the lease is lost."""
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
        """Unfinished jobs that nobody holds and whose message should have been taken long ago. Those that
        another sweep is looking at are left to it.
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


class EveryTenantsJobs:
    """For the operator. The session's scope is every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def page(
        self, statuses: Collection[JobStatus], *, after: str | None, limit: int
    ) -> Sequence[Row[Job, str, str]]:
        """Jobs, their tenants' names and their adapters', the newest first."""
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
        """By status."""
        query = select(Job.status, func.count()).group_by(Job.status)
        return {status: int(count) for status, count in (await self._session.execute(query)).tuples()}

    async def owner(self, job_id: str) -> str | None:
        query = select(Job.tenant_id).where(Job.id == job_id)
        return (await self._session.execute(query)).scalar_one_or_none()


def _awaits(upload_id: str) -> ColumnElement[bool]:
    either = [Job.parameters[AWAITED][name].as_string() == upload_id for name in SOURCE_FILES]
    return or_(*either)
