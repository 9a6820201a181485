"""What the routes of jobs take and show, as JSON: in the shape of OpenAI's fine-tuning jobs.

Owns field names, their order and their limits. Refuses to know what is done with them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from adapters.jobs.models import Job
from adapters.models import AdapterEvent
from adapters.submission import Calibration
from api.json_bodies import decode, unix
from api.v1.adapter_bodies import Id


class CreateCalibrationJobRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A version is to be measured again."""

    model: Annotated[str, Meta(min_length=1, max_length=200)]
    """`base:name@version`, `base:name`, or an adapter's id."""
    version: Annotated[int, Meta(ge=1, le=999_999_999)] | None = None
    """Of that adapter, where the model does not say."""
    file_id: Id | None = None
    """Samples of the tenant's own, uploaded with the purpose `calibration`; null: the default set."""
    dtype: Literal["auto", "bfloat16", "float8_e4m3"] = "auto"

    def calibration(self) -> Calibration:
        return Calibration(self.file_id, self.dtype)


BODIES = (CreateCalibrationJobRequest,)
_create = msgspec.json.Decoder(CreateCalibrationJobRequest)


def decode_create_job(body: bytes) -> CreateCalibrationJobRequest:
    """Raises InvalidValue, UnsupportedParameter."""
    return decode(_create, body)


def job_object(job: Job, model: str | None) -> dict[str, Any]:
    """`model`: the pinned name of its version; None when that is deleted."""
    samples = job.parameters.get("calibration")
    return {
        "id": job.id,
        "object": "calibration.job",
        "created_at": unix(job.created_at),
        "started_at": unix(job.started_at),
        "finished_at": unix(job.finished_at),
        "estimated_finish": unix(job.estimated_finish_at),
        "status": job.status,
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


def job_event_object(event: AdapterEvent) -> dict[str, Any]:
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
