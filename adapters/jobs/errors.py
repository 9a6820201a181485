"""Defines the errors of jobs. They carry data, not HTTP status codes."""

from __future__ import annotations

from adapters.errors import AdapterError


class JobNotFound(AdapterError):
    """The job does not exist or belongs to another tenant."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"there is no job {job_id[:80]!r}")
        self.job_id = job_id


class JobFinished(AdapterError):
    """The job has ended: it cannot be cancelled, paused or resumed."""

    def __init__(self, job_id: str, status: str) -> None:
        super().__init__(f"the job {job_id} has ended: {status}")
        self.job_id = job_id
        self.status = status


class JobUnfinished(AdapterError):
    """The version has an unfinished job, and may have one at a time."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"the version has an unfinished job, {job_id}")
        self.job_id = job_id


class ReportNotFound(AdapterError):
    """The job has no report yet, or its report was removed."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"the job {job_id} has no report")
        self.job_id = job_id


class VersionDeleted(AdapterError):
    """The version of a job has been deleted."""

    def __init__(self, adapter_id: str, version: int) -> None:
        super().__init__(f"version {version} of {adapter_id} is deleted")
        self.adapter_id = adapter_id
        self.version = version


class LeaseLost(AdapterError):
    """Another worker holds the job now: this worker's writes have no effect."""

    def __init__(self, job_id: str, fence: int) -> None:
        super().__init__(f"the lease {fence} of job {job_id} is lost")
        self.job_id = job_id
        self.fence = fence


class JobFailed(AdapterError):
    """The job failed for a reason that a retry would not change."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
