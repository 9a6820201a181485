"""Jobs of all tenants, for the operator. Changing one is `JobService`'s, like a tenant's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from adapters.jobs.models import Job, JobStatus
from adapters.jobs.repository import OPEN, UNFINISHED, WAITING, EveryTenantsJobs
from db.session import EVERY_TENANT, Database

GROUPS: Mapping[str, Sequence[JobStatus]] = {
    "open": OPEN,
    "running": (JobStatus.RUNNING,),
    "queued": (JobStatus.QUEUED,),
    "waiting": WAITING,
    "failed": (JobStatus.FAILED,),
    "all": tuple(JobStatus),
}
"""What can be asked for together."""


@dataclass(frozen=True, slots=True)
class FoundJob:
    job: Job
    tenant: str
    """Its name."""
    adapter: str
    """Its name; of a deleted one too."""


class EveryJob:
    """Every method is one transaction. Raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, group: str, *, after: str | None = None, limit: int = 50) -> list[FoundJob]:
        """The newest first, beyond the one whose id is `after`."""
        async with self._database.read(EVERY_TENANT) as session:
            rows = await EveryTenantsJobs(session).page(GROUPS[group], after=after, limit=limit)
        return [FoundJob(*row) for row in rows]

    async def counts(self) -> dict[str, int]:
        """How many of each group there are, but for `all`."""
        async with self._database.read(EVERY_TENANT) as session:
            found = await EveryTenantsJobs(session).counts()
        groups = {name: statuses for name, statuses in GROUPS.items() if name != "all"}
        return {name: sum(found.get(status, 0) for status in statuses) for name, statuses in groups.items()}

    async def owner(self, job_id: str) -> str | None:
        """Whose it is."""
        async with self._database.read(EVERY_TENANT) as session:
            return await EveryTenantsJobs(session).owner(job_id)


__all__ = ["GROUPS", "UNFINISHED", "EveryJob", "FoundJob"]
