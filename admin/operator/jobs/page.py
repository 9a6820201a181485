"""Formats onboarding jobs of all tenants for the jobs page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from adapters.jobs.models import JobStatus
from adapters.jobs.overview import FoundJob
from adapters.jobs.repository import OPEN
from admin.badge import Badge

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
    JobStatus.VALIDATING_FILES: Badge("Waiting for files", "off"),
    JobStatus.QUEUED: Badge("Queued", "busy"),
    JobStatus.RUNNING: Badge("Running", "busy"),
    JobStatus.PAUSED: Badge("Paused", "off"),
    JobStatus.SUCCEEDED: Badge("Succeeded", "good"),
    JobStatus.FAILED: Badge("Failed", "bad"),
    JobStatus.CANCELLED: Badge("Cancelled", "off"),
}


@dataclass(frozen=True)
class JobRow:
    id: str
    tenant_id: str
    tenant: str
    what: str
    """The adapter and its version."""
    state: Badge
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
        state=Badge("Cancelling", "busy") if job.wanted == "cancel" else _STATES[status],
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
