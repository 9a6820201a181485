"""Cancelling, pausing and resuming jobs, in every step and before the first."""

from __future__ import annotations

import asyncio

import pytest

from adapters.jobs.errors import JobFinished, JobNotFound
from tests.support.jobs_worker import STEPS
from tests.worker.jobs_stack import JobsStack

WORKING = STEPS[:-1]
"""In the last one the job has ended already."""
PROMPT = 10.0
"""Seconds. A worker obeys within one; the rest is for machines that do other things too."""


async def test_a_job_is_cancelled_in_any_step(jobs: JobsStack) -> None:
    jobs.start()
    for step in WORKING:
        jobs.tell(f"hold-{step}")
        job_id = await jobs.make_job()
        await jobs.arrival(job_id, step)
        asked = await jobs.service.cancel(jobs.tenant_id, job_id)
        assert (asked.status, asked.wanted) == ("running", "cancel")
        assert await jobs.until(job_id, "cancelled") < PROMPT
        jobs.untell(f"hold-{step}")
        job, version = await jobs.job(job_id), await jobs.version_of(job_id)
        assert (job.wanted, job.lease_owner, job.error) == (None, None, None)
        assert job.finished_at is not None
        assert (version.state, version.error) == (
            "failed",
            "The job was cancelled before the version was ready.",
        )
        events = await jobs.events(job_id)
        assert events.count("job.cancelled") == events.count("version.failed") == 1
        assert (await jobs.service.cancel(jobs.tenant_id, job_id)).status == "cancelled"
        assert await jobs.events(job_id) == events, "cancelling again changes nothing"
        for verb in (jobs.service.pause, jobs.service.resume):
            with pytest.raises(JobFinished):
                await verb(jobs.tenant_id, job_id)


async def test_a_job_is_paused_and_resumed_in_any_step(jobs: JobsStack) -> None:
    jobs.start()
    for step in WORKING:
        jobs.tell(f"hold-{step}")
        job_id = await jobs.make_job()
        await jobs.arrival(job_id, step)
        assert (await jobs.service.pause(jobs.tenant_id, job_id)).wanted == "pause"
        assert await jobs.until(job_id, "paused") < PROMPT
        jobs.untell(f"hold-{step}")
        await asyncio.sleep(1)  # several sweeps: nobody takes it
        assert (await jobs.job(job_id)).status == "paused"
        assert (await jobs.version_of(job_id)).state in ("validating", "calibrating")
        assert (await jobs.service.pause(jobs.tenant_id, job_id)).status == "paused"
        assert (await jobs.service.resume(jobs.tenant_id, job_id)).status == "queued"
        await jobs.until(job_id, "succeeded")
        events = await jobs.assert_done_once(job_id)
        assert events.count("job.paused") == events.count("job.resumed") == 1


async def test_a_job_nobody_works_on_is_changed_at_once(jobs: JobsStack) -> None:
    """No worker runs."""
    cancelled, paused = await jobs.make_job(), await jobs.make_job()
    assert (await jobs.service.cancel(jobs.tenant_id, cancelled)).status == "cancelled"
    assert (await jobs.version_of(cancelled)).state == "failed"
    assert (await jobs.service.pause(jobs.tenant_id, paused)).status == "paused"
    jobs.start()
    last = await jobs.make_job()
    await jobs.until(last, "succeeded")
    assert jobs.trace(cancelled) == jobs.trace(paused) == []
    await jobs.service.resume(jobs.tenant_id, paused)
    await jobs.until(paused, "succeeded")
    await jobs.assert_done_once(paused)


async def test_a_paused_job_can_be_cancelled_and_a_pause_be_taken_back(jobs: JobsStack) -> None:
    jobs.tell("hold-pack")
    first = await jobs.make_job()
    await jobs.service.pause(jobs.tenant_id, first)
    assert (await jobs.service.cancel(jobs.tenant_id, first)).status == "cancelled"
    second = await jobs.make_job()
    jobs.start()
    await jobs.arrival(second, "pack")
    await jobs.service.pause(jobs.tenant_id, second)
    await jobs.service.resume(jobs.tenant_id, second)
    jobs.untell("hold-pack")
    await jobs.until(second, "succeeded")
    await jobs.assert_done_once(second)


async def test_what_was_asked_of_a_worker_that_died_is_done_by_the_next(jobs: JobsStack) -> None:
    worker = jobs.start()
    jobs.tell("hold-pack")
    job_id = await jobs.make_job()
    await jobs.arrival(job_id, "pack")
    worker.kill()
    worker.wait()
    assert (await jobs.service.cancel(jobs.tenant_id, job_id)).wanted == "cancel"
    jobs.start()
    await jobs.until(job_id, "cancelled")
    assert (await jobs.version_of(job_id)).state == "failed"
    assert [step for step, _ in jobs.trace(job_id)].count("pack") == 1


async def test_progress_is_written_while_it_works(jobs: JobsStack) -> None:
    jobs.start()
    jobs.tell("hold-calibrate")
    job_id = await jobs.make_job()
    await jobs.arrival(job_id, "calibrate")

    for _ in range(100):
        job = await jobs.job(job_id)
        if job.phase == "calibrating" and job.progress > 0.5:
            break
        await asyncio.sleep(0.1)
    assert job.progress == pytest.approx(0.15 + 0.82 * 0.5)
    assert job.estimated_finish_at is not None
    jobs.untell("hold-calibrate")
    await jobs.until(job_id, "succeeded")
    job = await jobs.job(job_id)
    assert (job.progress, job.estimated_finish_at) == (1.0, None)


async def test_another_tenants_job_does_not_exist(jobs: JobsStack) -> None:
    job_id = await jobs.make_job()
    for verb in (jobs.service.get, jobs.service.cancel, jobs.service.pause, jobs.service.resume):
        with pytest.raises(JobNotFound):
            await verb("ten_other", job_id)
    with pytest.raises(JobNotFound):
        await jobs.service.events("ten_other", job_id)
    assert (await jobs.service.page("ten_other")) == ([], False)
    assert (await jobs.job(job_id)).wanted is None


async def test_a_job_is_followed_to_its_end(jobs: JobsStack) -> None:
    jobs.start()
    job_id = await jobs.make_job()
    seen: list[str] = []
    statuses: list[str] = []
    async with asyncio.timeout(120):
        async for job, events in jobs.service.follow(jobs.tenant_id, job_id):
            statuses.append(job.status)
            seen += [event.type for event in events]
    assert seen == await jobs.events(job_id)
    assert statuses[-1] == "succeeded"
