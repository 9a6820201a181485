"""Describes jobs that have not ended: their phases, their progress and what can be done about them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from adapters.jobs.models import IMPORT, IMPORTING, Job, JobStatus
from admin import formatting

_IMPORT = (IMPORTING, "Import", "Downloading the files from their source.")
"""The first phase of jobs whose files were not uploaded."""
_PHASES = (
    ("validating", "Inspect", "Checking the uploaded files."),
    ("packing", "Pack", "Converting the weights for serving."),
    ("calibrating", "Calibrate", "Running samples on the engine that will serve it."),
    ("gate", "Decide", "Comparing the results with the thresholds."),
)


@dataclass(frozen=True)
class Phase:
    label: str
    state: str
    """`done`, `current` or `ahead`."""


@dataclass(frozen=True)
class Work:
    """A job that has not ended, as the page shows it."""

    id: str
    version: int
    headline: str
    hint: str
    percent: int
    remaining: str | None
    phases: list[Phase]
    is_paused: bool
    may_pause: bool
    may_cancel: bool


def work_of(job: Job) -> Work:
    """Words for a job that has not ended."""
    all_phases = (_IMPORT, *_PHASES) if job.phase == IMPORTING or IMPORT in job.parameters else _PHASES
    names = [phase for phase, _, _ in all_phases]
    place = names.index(job.phase) if job.phase in names else -1
    paused = job.status == JobStatus.PAUSED
    if job.wanted == "cancel":
        headline, hint = "Cancelling", "Stops at the next step."
    elif job.wanted == "pause":
        headline, hint = "Pausing", "Stops at the next step. Progress is kept."
    elif paused:
        headline, hint = "Paused", "Progress is kept. Resume at any time."
    elif job.status == JobStatus.VALIDATING_FILES:
        headline, hint = "Waiting for the files", "Starts when all uploads are complete."
    elif job.status == JobStatus.QUEUED or place < 0:
        headline, hint = "Waiting for a worker", "Starts automatically."
    else:
        headline, hint = f"{all_phases[place][1].removesuffix('e')}ing", all_phases[place][2]
    phases = [
        Phase(label, "done" if index < place else "current" if index == place else "ahead")
        for index, (_, label, _) in enumerate(all_phases)
    ]
    return Work(
        id=job.id,
        version=job.version,
        headline=headline,
        hint=hint,
        percent=min(99, int(job.progress * 100)),
        remaining=_remaining(job),
        phases=phases,
        is_paused=paused,
        may_pause=not paused and job.wanted is None,
        may_cancel=job.wanted != "cancel",
    )


def _remaining(job: Job) -> str | None:
    if job.estimated_finish_at is None or job.wanted is not None:
        return None
    seconds = (job.estimated_finish_at - datetime.now(UTC)).total_seconds()
    return f"{formatting.duration(max(0.0, seconds))} left"
