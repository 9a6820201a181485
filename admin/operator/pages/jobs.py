"""What the page of jobs shows, in words. Refuses to know HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from adapters.jobs.models import JobStatus
from adapters.jobs.overview import FoundJob
from adapters.jobs.repository import OPEN
from admin.pages.adapters import State

PAGE = 50
TABS = {
    "open": "Open",
    "running": "Running",
    "queued": "Queued",
    "waiting": "Waiting",
    "failed": "Failed",
    "all": "All",
}
_STATES = {
    JobStatus.VALIDATING_FILES: State("Waits for files", "off"),
    JobStatus.QUEUED: State("Queued", "busy"),
    JobStatus.RUNNING: State("Running", "busy"),
    JobStatus.PAUSED: State("Paused", "off"),
    JobStatus.SUCCEEDED: State("Done", "good"),
    JobStatus.FAILED: State("Failed", "bad"),
    JobStatus.CANCELLED: State("Cancelled", "off"),
}


@dataclass(frozen=True)
class JobRow:
    id: str
    tenant_id: str
    tenant: str
    what: str
    """The adapter and its version."""
    state: State
    phase: str
    percent: int
    is_running: bool
    created_at: datetime
    ended_at: datetime | None
    attempts: int
    error: str
    error_code: str
    may_cancel: bool
    may_retry: bool


def row(found: FoundJob) -> JobRow:
    job, error = found.job, found.job.error or {}
    status = JobStatus(job.status)
    return JobRow(
        id=job.id,
        tenant_id=job.tenant_id,
        tenant=found.tenant,
        what=f"{found.adapter}@{job.version}",
        state=State("Being cancelled", "busy") if job.wanted == "cancel" else _STATES[status],
        phase=(job.phase or "") if status == JobStatus.RUNNING else "",
        percent=round(100 * job.progress),
        is_running=status == JobStatus.RUNNING,
        created_at=job.created_at,
        ended_at=job.finished_at,
        attempts=job.attempts,
        error=str(error.get("message", "")),
        error_code=str(error.get("code", "")),
        may_cancel=status in OPEN and job.wanted != "cancel",
        may_retry=status == JobStatus.FAILED,
    )
