"""What can be wrong with a job. Errors carry data, not HTTP."""

from __future__ import annotations

from adapters.errors import AdapterError


class JobNotFound(AdapterError):
    """Absent or another tenant's."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"there is no job {job_id[:80]!r}")
        self.job_id = job_id


class JobFinished(AdapterError):
    """It has ended: it can be neither cancelled, paused nor resumed."""

    def __init__(self, job_id: str, status: str) -> None:
        super().__init__(f"the job {job_id} has ended: {status}")
        self.job_id = job_id
        self.status = status


class JobUnfinished(AdapterError):
    """The version has a job already, and can have one at a time."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"the version has an unfinished job, {job_id}")
        self.job_id = job_id


class ReportNotFound(AdapterError):
    """The job has not got as far as a report, or its report is gone."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"the job {job_id} has no report")
        self.job_id = job_id


class VersionGone(AdapterError):
    """The version a job is about has been deleted."""

    def __init__(self, adapter_id: str, version: int) -> None:
        super().__init__(f"version {version} of {adapter_id} is deleted")
        self.adapter_id = adapter_id
        self.version = version


class LeaseLost(AdapterError):
    """Somebody else holds the job by now: what this worker does to it changes nothing any more."""

    def __init__(self, job_id: str, fence: int) -> None:
        super().__init__(f"the lease {fence} of job {job_id} is lost")
        self.job_id = job_id
        self.fence = fence


class JobFailed(AdapterError):
    """The job's work came to an end that trying again would not change."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
