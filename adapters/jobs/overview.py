"""Lists jobs of all tenants for the operator. `JobService` changes them, like a tenant's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from adapters.jobs.models import Job, JobStatus
from adapters.jobs.repository import OPEN, UNFINISHED, WAITING, AllTenantsJobs
from db.session import EVERY_TENANT, Database

GROUPS: Mapping[str, Sequence[JobStatus]] = {
    "open": OPEN,
    "running": (JobStatus.RUNNING,),
    "queued": (JobStatus.QUEUED,),
    "waiting": WAITING,
    "failed": (JobStatus.FAILED,),
    "all": tuple(JobStatus),
}
"""Statuses by the operator's filters."""


@dataclass(frozen=True, slots=True)
class FoundJob:
    job: Job
    tenant: str
    """The tenant's name."""
    adapter: str
    """The adapter's name, also of a deleted one."""


class JobOverview:
    """Jobs of all tenants. Every method is one transaction and may raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, group: str, *, after: str | None = None, limit: int = 50) -> list[FoundJob]:
        """Returns jobs of a group, newest first, after the one whose id is `after`."""
        async with self._database.read(EVERY_TENANT) as session:
            rows = await AllTenantsJobs(session).page(GROUPS[group], after=after, limit=limit)
        return [FoundJob(*row) for row in rows]

    async def counts(self) -> dict[str, int]:
        """Returns the number of jobs in each group except `all`."""
        async with self._database.read(EVERY_TENANT) as session:
            found = await AllTenantsJobs(session).counts()
        groups = {name: statuses for name, statuses in GROUPS.items() if name != "all"}
        return {name: sum(found.get(status, 0) for status in statuses) for name, statuses in groups.items()}

    async def owner(self, job_id: str) -> str | None:
        """Returns the id of the job's tenant."""
        async with self._database.read(EVERY_TENANT) as session:
            return await AllTenantsJobs(session).owner(job_id)


__all__ = ["GROUPS", "UNFINISHED", "FoundJob", "JobOverview"]
