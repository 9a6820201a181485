"""Defines the JSON request bodies and response objects of jobs, in the format of OpenAI's fine-tuning
jobs.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

import msgspec
from msgspec import Meta

from adapters.jobs.models import Job, JobStatus
from adapters.models import AdapterEvent
from adapters.submission import Calibration
from api.body_fields import Body, Id
from api.json_bodies import decode, unix


class CreateCalibrationJobRequest(Body, frozen=True, kw_only=True):
    """A request to calibrate a version again."""

    model: Annotated[str, Meta(min_length=1, max_length=200)]
    """`base:name@version`, `base:name`, or an adapter's id."""
    version: Annotated[int, Meta(ge=1, le=999_999_999)] | None = None
    """The adapter's version, if the model does not name one."""
    file_id: Id | None = None
    """A file of the tenant's own samples, uploaded with the purpose `calibration`; null: the default set."""
    dtype: Literal["auto", "bfloat16", "float8_e4m3"] = "auto"

    def calibration(self) -> Calibration:
        return Calibration(self.file_id, self.dtype)


class JobProgress(TypedDict):
    """How far a job is."""

    phase: str | None
    """What is done at the moment: `importing`, `validating`, `packing`, `calibrating` or `gate`."""
    share: float
    """From 0 to 1."""
    estimated_finish: int | None
    """Unix seconds."""


class JobObject(TypedDict):
    """A job that measures a version of an adapter before it serves."""

    id: str
    object: Literal["calibration.job"]
    created_at: int
    """Unix seconds."""
    started_at: int | None
    finished_at: int | None
    estimated_finish: int | None
    status: JobStatus
    model: str | None
    """The version's model name; null when the version is deleted."""
    adapter_id: str
    version: int
    calibration_file: str | None
    """The file with your own samples; null for the default set."""
    dtype: str
    """The number format that was asked for."""
    progress: JobProgress
    requested: str | None
    """`cancel` or `pause` while the job has been asked to stop and has not yet."""
    attempts: int
    """How often a worker has started the job."""
    error: dict[str, Any] | None
    """Why the job failed: `code`, `message` and `param`."""
    result: dict[str, Any] | None
    """What was measured; the report has more."""
    organization_id: str
    created_by: str | None


class JobEventObject(TypedDict):
    """Something that happened to a job."""

    id: str
    object: Literal["calibration.job.event"]
    created_at: int
    """Unix seconds."""
    level: str
    """`info`, `warn` or `error`."""
    message: str
    type: str
    data: dict[str, Any]
    job_id: str | None


BODIES = (CreateCalibrationJobRequest,)
_create = msgspec.json.Decoder(CreateCalibrationJobRequest)


def decode_create_job(body: bytes) -> CreateCalibrationJobRequest:
    """Raises InvalidValue, UnsupportedParameter."""
    return decode(_create, body)


def job_object(job: Job, model: str | None) -> JobObject:
    """Returns a job's object. `model`: the pinned name of its version; None if that is deleted."""
    samples = job.parameters.get("calibration")
    return {
        "id": job.id,
        "object": "calibration.job",
        "created_at": unix(job.created_at),
        "started_at": unix(job.started_at),
        "finished_at": unix(job.finished_at),
        "estimated_finish": unix(job.estimated_finish_at),
        "status": JobStatus(job.status),
        "model": model,
        "adapter_id": job.adapter_id,
        "version": job.version,
        "calibration_file": None if samples is None else samples["file_id"],
        "dtype": job.parameters.get("dtype", "auto"),
        "progress": {
            "phase": job.phase,
            "share": round(job.progress, 4),
            "estimated_finish": unix(job.estimated_finish_at),
        },
        "requested": job.wanted,
        "attempts": job.attempts,
        "error": job.error,
        "result": job.result,
        "organization_id": job.tenant_id,
        "created_by": job.created_by,
    }


def job_event_object(event: AdapterEvent) -> JobEventObject:
    return {
        "id": event.id,
        "object": "calibration.job.event",
        "created_at": unix(event.created_at),
        "level": "warn" if event.level == "warning" else event.level,
        "message": event.message,
        "type": event.type,
        "data": event.data,
        "job_id": event.job_id,
    }
