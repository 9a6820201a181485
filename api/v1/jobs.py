"""`/v1/calibration/jobs`: creates, lists, pauses and cancels a tenant's jobs, and returns their reports.

The routes are those of OpenAI's fine-tuning jobs. The package `adapters.jobs` has the logic.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal

from fastapi import Request, Response

from adapters.errors import AdapterNotFound, VersionNotFound, VersionNotReady
from adapters.files.errors import FileNotFound
from adapters.jobs.errors import JobFinished, JobNotFound, JobUnfinished, ReportNotFound
from adapters.jobs.models import Job
from adapters.models import AdapterEvent
from adapters.reports import Report
from adapters.storage.errors import StorageUnavailable
from api.authentication import READ_ADAPTERS, WRITE_ADAPTERS, actor_of, authenticate
from api.event_streams import event_stream
from api.json_bodies import read_json
from api.openapi.routing import Router, answers, fails_with, json_body
from api.pagination import Page, Paged, page
from api.services import onboarding_of, services_of
from api.v1.job_bodies import JobEventObject, JobObject, decode_create_job, job_event_object, job_object
from engine.client import EngineGone
from tenants.errors import AccountSuspended

router = Router(
    prefix="/v1/calibration/jobs",
    tags=["Calibration"],
    errors=(AccountSuspended(),),
)

_TEXT = {"schema": {"type": "string"}}
# A report contains names that tenants chose: browsers must not run scripts in it.
_SHOWN_SAFELY = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox",
    "x-content-type-options": "nosniff",
}


@router.post(
    "",
    operation_id="createCalibrationJob",
    openapi_extra=json_body("CreateCalibrationJobRequest"),
    status_code=201,
)
@fails_with(
    EngineGone("the engine does not serve"),
    AdapterNotFound("support"),
    VersionNotFound("support", 7),
    FileNotFound("file_1"),
    VersionNotReady("support", 7, "calibrating"),
    JobUnfinished("job_1"),
)
async def create_job(request: Request) -> JobObject:
    """Calibrates a version again. A version that serves keeps serving; one that failed its calibration is
    judged again.
    """
    caller = await authenticate(request, WRITE_ADAPTERS)
    body = decode_create_job(await read_json(request))
    services_of(request).pools.check_ready()
    started = await onboarding_of(request).recalibration.start(
        caller.tenant_id,
        caller.key_id,
        body.model,
        body.version,
        body.calibration(),
        by=actor_of(request, caller),
    )
    return job_object(started.job, started.model)


@router.get("", operation_id="listCalibrationJobs")
async def list_jobs(request: Request, query: Paged, adapter_id: str | None = None) -> Page[JobObject]:
    """Lists calibration jobs; with `adapter_id`, those of one adapter."""
    caller = await authenticate(request, READ_ADAPTERS)
    jobs, more = await onboarding_of(request).jobs.page(
        caller.tenant_id,
        after=query.after,
        limit=query.limit,
        newest_first=query.newest_first,
        adapter_id=adapter_id,
    )
    models = await onboarding_of(request).jobs.models_of(caller.tenant_id, jobs)
    return page([job_object(job, models.get(job.id)) for job in jobs], query.limit, more)


@router.get("/{job_id}", operation_id="retrieveCalibrationJob")
@fails_with(JobNotFound("job_1"))
async def retrieve_job(request: Request, job_id: str) -> JobObject:
    """Retrieves a calibration job."""
    caller = await authenticate(request, READ_ADAPTERS)
    return await _shown(request, await onboarding_of(request).jobs.get(caller.tenant_id, job_id))


@router.post("/{job_id}/cancel", operation_id="cancelCalibrationJob")
@fails_with(JobNotFound("job_1"), JobFinished("job_1", "succeeded"))
async def cancel_job(request: Request, job_id: str) -> JobObject:
    """Cancels a job. Its version fails, unless it served before."""
    caller = await authenticate(request, WRITE_ADAPTERS)
    by = actor_of(request, caller)
    return await _shown(request, await onboarding_of(request).jobs.cancel(caller.tenant_id, job_id, by=by))


@router.post("/{job_id}/pause", operation_id="pauseCalibrationJob")
@fails_with(JobNotFound("job_1"), JobFinished("job_1", "succeeded"))
async def pause_job(request: Request, job_id: str) -> JobObject:
    """Pauses a job. What it has measured is kept."""
    caller = await authenticate(request, WRITE_ADAPTERS)
    by = actor_of(request, caller)
    return await _shown(request, await onboarding_of(request).jobs.pause(caller.tenant_id, job_id, by=by))


@router.post("/{job_id}/resume", operation_id="resumeCalibrationJob")
@fails_with(JobNotFound("job_1"), JobFinished("job_1", "succeeded"))
async def resume_job(request: Request, job_id: str) -> JobObject:
    """Resumes a paused job."""
    caller = await authenticate(request, WRITE_ADAPTERS)
    by = actor_of(request, caller)
    return await _shown(request, await onboarding_of(request).jobs.resume(caller.tenant_id, job_id, by=by))


@router.get("/{job_id}/events", operation_id="listCalibrationJobEvents", response_model=None)
@answers(Page[JobEventObject], JobObject, JobEventObject)
@fails_with(JobNotFound("job_1"))
async def list_job_events(
    request: Request, query: Paged, job_id: str, stream: bool = False
) -> Page[JobEventObject] | Response:
    """Lists what happened to a job. With `stream`, sends events as they happen, and the job whenever its
    progress changes, until the job ends.
    """
    caller = await authenticate(request, READ_ADAPTERS)
    jobs = onboarding_of(request).jobs
    if stream:
        if query.after is not None:
            await jobs.events(caller.tenant_id, job_id, after=query.after, limit=1)
        model = (await _shown(request, await jobs.get(caller.tenant_id, job_id)))["model"]
        source = _changes(jobs.follow(caller.tenant_id, job_id, query.after), model)
        return event_stream(source, services_of(request).limits.ping_interval)
    events, more = await jobs.events(
        caller.tenant_id, job_id, after=query.after, limit=query.limit, newest_first=query.newest_first
    )
    return page([job_event_object(event) for event in events], query.limit, more)


@router.get(
    "/{job_id}/report",
    operation_id="retrieveCalibrationReport",
    response_class=Response,
    responses={200: {"content": {"application/json": {"schema": {"type": "object"}}, "text/html": _TEXT}}},
)
@fails_with(JobNotFound("job_1"), ReportNotFound("job_1"), StorageUnavailable("the store does not answer"))
async def retrieve_report(
    request: Request, job_id: str, format: Literal["json", "html"] = "json"
) -> Response:
    """Retrieves everything that a job measured, as JSON or as an HTML page."""
    return await _report(request, job_id, f"report.{format}")


@router.get(
    "/{job_id}/report.html",
    operation_id="retrieveCalibrationReportPage",
    response_class=Response,
    responses={200: {"content": {"text/html": _TEXT}}},
)
@fails_with(JobNotFound("job_1"), ReportNotFound("job_1"), StorageUnavailable("the store does not answer"))
async def retrieve_report_page(request: Request, job_id: str) -> Response:
    """Retrieves the report as an HTML page."""
    return await _report(request, job_id, "report.html")


@router.get(
    "/{job_id}/report/{chart}.svg",
    operation_id="retrieveCalibrationChart",
    response_class=Response,
    responses={200: {"content": {"image/svg+xml": _TEXT}}},
)
@fails_with(JobNotFound("job_1"), ReportNotFound("job_1"), StorageUnavailable("the store does not answer"))
async def retrieve_chart(request: Request, job_id: str, chart: str) -> Response:
    """Retrieves a chart of the report as SVG."""
    return await _report(request, job_id, f"{chart}.svg")


async def _report(request: Request, job_id: str, name: str) -> Response:
    caller = await authenticate(request, READ_ADAPTERS)
    services = onboarding_of(request)
    job = await services.jobs.get(caller.tenant_id, job_id)
    report: Report = await services.reports.read(job, name)
    return Response(report.content, media_type=report.media_type, headers=_SHOWN_SAFELY)


async def _shown(request: Request, job: Job) -> JobObject:
    models = await onboarding_of(request).jobs.models_of(job.tenant_id, [job])
    return job_object(job, models.get(job.id))


async def _changes(
    source: AsyncIterator[tuple[Job, list[AdapterEvent]]], model: str | None
) -> AsyncIterator[list[JobObject | JobEventObject]]:
    """Yields events, followed by the job whenever its state changes."""
    last: JobObject | None = None
    async for job, events in source:
        shown = job_object(job, model)
        changed: list[JobObject | JobEventObject] = [] if shown == last else [shown]
        last = shown
        yield [*(job_event_object(event) for event in events), *changed]
