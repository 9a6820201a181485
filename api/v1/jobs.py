"""`/v1/calibration/jobs`: a tenant's jobs, with the verbs of OpenAI's fine-tuning jobs, and their reports.

Owns the paths and the order of things in a request. What a job is, and what may become of it, is
`adapters.jobs`' business.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal

from fastapi import APIRouter, Request, Response

from adapters.jobs.models import Job
from adapters.models import AdapterEvent
from adapters.reports import Report
from api.deps import (
    READ_ADAPTERS,
    WRITE_ADAPTERS,
    actor_of,
    authenticate,
    onboarding_of,
    read_json,
    services_of,
    serving_engine,
)
from api.event_feed import event_feed
from api.openapi import ERROR_RESPONSES, EVENT_STREAM, json_body
from api.pages import Paged, page
from api.v1.job_bodies import decode_create_job, job_event_object, job_object

router = APIRouter(prefix="/v1/calibration/jobs", responses=ERROR_RESPONSES, tags=["Calibration"])

# A report is made of a tenant's names and numbers: a browser that shows it runs nothing of it.
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
async def create_job(request: Request) -> dict[str, Any]:
    """Measure a version again. One in service stays so, one that failed its calibration is judged anew."""
    caller = await authenticate(request, WRITE_ADAPTERS)
    body = decode_create_job(await read_json(request))
    serving_engine(request)
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
async def list_jobs(request: Request, query: Paged, adapter_id: str | None = None) -> dict[str, Any]:
    """The tenant's jobs; with `adapter_id`, those of one adapter."""
    caller = await authenticate(request, READ_ADAPTERS)
    jobs, more = await onboarding_of(request).jobs.page(
        caller.tenant_id,
        after=query.after,
        limit=query.limit,
        newest_first=query.newest_first,
        adapter_id=adapter_id,
    )
    models = await onboarding_of(request).jobs.models_of(caller.tenant_id, jobs)
    return page([job_object(job, models.get(job.id)) for job in jobs], query.limit) | {"has_more": more}


@router.get("/{job_id}", operation_id="retrieveCalibrationJob")
async def retrieve_job(request: Request, job_id: str) -> dict[str, Any]:
    caller = await authenticate(request, READ_ADAPTERS)
    return await _shown(request, await onboarding_of(request).jobs.get(caller.tenant_id, job_id))


@router.post("/{job_id}/cancel", operation_id="cancelCalibrationJob")
async def cancel_job(request: Request, job_id: str) -> dict[str, Any]:
    """End it. Its version has failed then, unless it was in service before."""
    caller = await authenticate(request, WRITE_ADAPTERS)
    by = actor_of(request, caller)
    return await _shown(request, await onboarding_of(request).jobs.cancel(caller.tenant_id, job_id, by=by))


@router.post("/{job_id}/pause", operation_id="pauseCalibrationJob")
async def pause_job(request: Request, job_id: str) -> dict[str, Any]:
    """Stop it for now. What it has done is kept."""
    caller = await authenticate(request, WRITE_ADAPTERS)
    by = actor_of(request, caller)
    return await _shown(request, await onboarding_of(request).jobs.pause(caller.tenant_id, job_id, by=by))


@router.post("/{job_id}/resume", operation_id="resumeCalibrationJob")
async def resume_job(request: Request, job_id: str) -> dict[str, Any]:
    """Go on with it."""
    caller = await authenticate(request, WRITE_ADAPTERS)
    by = actor_of(request, caller)
    return await _shown(request, await onboarding_of(request).jobs.resume(caller.tenant_id, job_id, by=by))


@router.get(
    "/{job_id}/events", operation_id="listCalibrationJobEvents", response_model=None, responses=EVENT_STREAM
)
async def list_job_events(
    request: Request, query: Paged, job_id: str, stream: bool = False
) -> dict[str, Any] | Response:
    """What happened to it. With `stream`, from the beginning or the event `after` on, as server-sent events,
    with the job itself whenever its progress changes; they end with the job.
    """
    caller = await authenticate(request, READ_ADAPTERS)
    jobs = onboarding_of(request).jobs
    if stream:
        if query.after is not None:
            await jobs.events(caller.tenant_id, job_id, after=query.after, limit=1)
        model = (await _shown(request, await jobs.get(caller.tenant_id, job_id)))["model"]
        source = _changes(jobs.follow(caller.tenant_id, job_id, query.after), model)
        return event_feed(source, services_of(request).limits.ping_interval)
    events, more = await jobs.events(
        caller.tenant_id, job_id, after=query.after, limit=query.limit, newest_first=query.newest_first
    )
    return page([job_event_object(event) for event in events], query.limit) | {"has_more": more}


@router.get(
    "/{job_id}/report",
    operation_id="retrieveCalibrationReport",
    response_class=Response,
    responses={200: {"content": {"application/json": {}, "text/html": {}}}},
)
async def retrieve_report(
    request: Request, job_id: str, format: Literal["json", "html"] = "json"
) -> Response:
    """All that was measured, as a document or as a page that needs nothing else."""
    return await _report(request, job_id, f"report.{format}")


@router.get(
    "/{job_id}/report.html",
    operation_id="retrieveCalibrationReportPage",
    response_class=Response,
    responses={200: {"content": {"text/html": {}}}},
)
async def retrieve_report_page(request: Request, job_id: str) -> Response:
    return await _report(request, job_id, "report.html")


@router.get(
    "/{job_id}/report/{chart}.svg",
    operation_id="retrieveCalibrationChart",
    response_class=Response,
    responses={200: {"content": {"image/svg+xml": {}}}},
)
async def retrieve_chart(request: Request, job_id: str, chart: str) -> Response:
    """A chart of the report, by its name there."""
    return await _report(request, job_id, f"{chart}.svg")


async def _report(request: Request, job_id: str, name: str) -> Response:
    caller = await authenticate(request, READ_ADAPTERS)
    services = onboarding_of(request)
    job = await services.jobs.get(caller.tenant_id, job_id)
    report: Report = await services.reports.read(job, name)
    return Response(report.content, media_type=report.media_type, headers=_SHOWN_SAFELY)


async def _shown(request: Request, job: Job) -> dict[str, Any]:
    models = await onboarding_of(request).jobs.models_of(job.tenant_id, [job])
    return job_object(job, models.get(job.id))


async def _changes(
    source: AsyncIterator[tuple[Job, list[AdapterEvent]]], model: str | None
) -> AsyncIterator[list[dict[str, Any]]]:
    """Events, each before the state of the job that they led to."""
    last: dict[str, Any] | None = None
    async for job, events in source:
        shown = job_object(job, model)
        changed = [] if shown == last else [shown]
        last = shown
        yield [job_event_object(event) for event in events] + changed
