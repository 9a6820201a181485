"""Jobs through real workers that are killed, stopped, doubled and cut off: each ends right, and once."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from sqlalchemy import update

from adapters.jobs.models import Job
from benchmarks.otlp_receiver import receiving_spans
from db.errors import DatabaseUnavailable
from db.session import EVERY_TENANT, Database
from db.tasks import JOBS_QUEUE, RUN_JOB
from telemetry.trace_context import TraceContext, in_trace
from tests.support.jobs_worker import STEPS
from tests.support.waiting import eventually
from tests.worker.jobs_stack import IDLE_TRANSACTION, JobsStack, kill


async def test_a_job_runs_through_all_steps_and_its_version_serves(
    jobs: JobsStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving_spans() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        jobs.start(nice="7")
        sender = TraceContext("a" * 32, "b" * 16)
        with in_trace(sender):
            job_id = await jobs.make_job()
        await jobs.until(job_id, "succeeded")
        await eventually(lambda: bool(receiver.named(f"run {RUN_JOB}")))
    (span,) = receiver.named(f"run {RUN_JOB}")
    assert (span.trace_id, span.parent_id) == sender
    assert span.attributes["messaging.destination.name"] == JOBS_QUEUE
    assert span.resource["service.name"] == "rootstock-worker"
    assert not span.failed
    await jobs.arrival(job_id, STEPS[-1])
    events = await jobs.assert_done_once(job_id)
    assert (await jobs.job(job_id)).phase == "gate"
    child = jobs.trace(job_id)[0][1]
    assert os.getpriority(os.PRIO_PROCESS, child) == 7
    assert os.getsid(child) == child, "its session's share of the cores is its own"
    assert events == [
        "job.created", "job.started", "version.inspected", "version.packed", "version.calibrated",
        "version.ready", "version.activated", "job.succeeded",
    ]  # fmt: skip
    assert [step for step, _ in jobs.trace(job_id)] == list(STEPS)


async def test_a_child_killed_in_any_step_is_replaced_at_once(jobs: JobsStack) -> None:
    """Nobody waits for the lease to run out: the worker knows that its own child is dead."""
    jobs.start()
    for step in STEPS:
        jobs.tell(f"hold-{step}")
        job_id = await jobs.make_job()
        kill(await jobs.arrival(job_id, step))
        if step != STEPS[-1]:  # after which nothing is left to do
            await jobs.arrival(job_id, step, times=2)
        jobs.untell(f"hold-{step}")
        await jobs.until(job_id, "succeeded")
        await jobs.assert_done_once(job_id)


async def test_a_worker_killed_in_any_step_is_followed_by_another(jobs: JobsStack) -> None:
    worker = jobs.start()
    for step in STEPS:
        jobs.tell(f"hold-{step}")
        job_id = await jobs.make_job()
        await jobs.arrival(job_id, step)
        worker.kill()
        worker.wait()
        jobs.untell(f"hold-{step}")
        worker = jobs.start()
        await jobs.until(job_id, "succeeded")
        events = await jobs.assert_done_once(job_id)
        assert ("job.worker_lost" in events) == (step != STEPS[-1])


async def test_a_message_delivered_twice_has_one_effect(jobs: JobsStack) -> None:
    jobs.start()
    jobs.start(beat="false")
    jobs.tell("hold-pack")
    job_id = await jobs.make_job()
    for _ in range(4):
        await jobs.sender.send(RUN_JOB, {"job_id": job_id})
    await jobs.arrival(job_id, "pack")
    await jobs.sender.send(RUN_JOB, {"job_id": job_id})
    await asyncio.sleep(1)
    jobs.untell("hold-pack")
    await jobs.until(job_id, "succeeded")
    await jobs.sender.send(RUN_JOB, {"job_id": job_id})
    await asyncio.sleep(1)
    await jobs.assert_done_once(job_id)
    assert [step for step, _ in jobs.trace(job_id)] == list(STEPS), "nobody else began"


async def test_two_workers_share_the_jobs(jobs: JobsStack) -> None:
    jobs.start()
    jobs.start()
    made = [await jobs.make_job() for _ in range(12)]
    for job_id in made:
        await jobs.until(job_id, "succeeded")
        await jobs.assert_done_once(job_id)


@pytest.mark.parametrize("step", ["inspect", "calibrate"])
async def test_a_worker_that_slept_while_another_took_over_changes_nothing(
    jobs: JobsStack, step: str
) -> None:
    jobs.start(beat="false")
    jobs.tell(f"hold-{step}")
    job_id = await jobs.make_job()
    sleeper = await jobs.arrival(job_id, step)
    os.kill(sleeper, signal.SIGSTOP)
    jobs.start()
    second = await jobs.arrival(job_id, step, times=2)
    assert second != sleeper
    jobs.untell(f"hold-{step}")
    await jobs.until(job_id, "succeeded")
    before = await jobs.assert_done_once(job_id)
    fence = (await jobs.job(job_id)).fence
    os.kill(sleeper, signal.SIGCONT)  # its step is done too now, and it writes
    await eventually(lambda: "is lost" in jobs.log.read_text(), 60)
    assert await jobs.assert_done_once(job_id) == before
    assert (await jobs.job(job_id)).fence == fence


async def test_a_worker_that_stopped_in_a_transaction_does_not_keep_its_job(jobs: JobsStack) -> None:
    jobs.start(beat="false")
    jobs.tell("hold-calibrate")
    job_id = await jobs.make_job()
    stopped = await jobs.arrival(job_id, "calibrate")
    os.kill(stopped, signal.SIGSTOP)
    # Its heartbeat's transaction, as it is left by a worker that stops between the statement and the commit.
    heartbeat = Database(jobs.database_url, idle_transaction_timeout=IDLE_TRANSACTION)
    with pytest.raises(DatabaseUnavailable, match="idle-in-transaction"):  # noqa: PT012  what happens meanwhile is the point
        async with heartbeat.write(EVERY_TENANT) as session:
            await session.execute(update(Job).where(Job.id == job_id).values(phase="calibrate"))
            jobs.start()
            jobs.untell("hold-calibrate")
            await jobs.until(job_id, "succeeded")
    await heartbeat.close()
    assert (await jobs.events(job_id)).count("job.started") == 2


async def test_a_worker_told_to_end_gives_its_job_to_another_at_once(jobs: JobsStack) -> None:
    worker = jobs.start(beat="false")
    jobs.tell("hold-calibrate")
    job_id = await jobs.make_job()
    await jobs.arrival(job_id, "calibrate")
    worker.terminate()
    assert await asyncio.to_thread(worker.wait, 60) == 0, jobs.log.read_text()
    job = await jobs.job(job_id)
    assert (job.status, job.lease_owner, job.attempts) == ("queued", None, 0)
    jobs.untell("hold-calibrate")
    jobs.start()
    await jobs.until(job_id, "succeeded")
    assert "job.handed_over" in await jobs.assert_done_once(job_id)


async def test_a_job_that_kills_its_workers_fails_after_a_number_of_attempts(jobs: JobsStack) -> None:
    jobs.start()
    jobs.tell("die-pack")
    job_id = await jobs.make_job()
    await jobs.until(job_id, "failed")
    job, version = await jobs.job(job_id), await jobs.version_of(job_id)
    message = "The job did not finish in 3 attempts."
    assert job.error == {"code": "too_many_attempts", "message": message, "param": None}
    assert (version.state, version.error) == ("failed", message)
    events = await jobs.events(job_id)
    assert events.count("job.started") == 4
    assert [step for step, _ in jobs.trace(job_id)].count("pack") == 3
    assert events.count("job.failed") == events.count("version.failed") == 1


async def test_a_job_that_fails_for_no_known_reason_is_tried_again(jobs: JobsStack) -> None:
    jobs.start()
    jobs.tell("fail-pack")
    job_id = await jobs.make_job()
    await jobs.arrival(job_id, "pack")
    jobs.untell("fail-pack")
    await jobs.until(job_id, "succeeded")
    assert "job.put_off" in await jobs.assert_done_once(job_id)


async def test_nothing_of_a_fault_of_ours_is_told_to_tenants(jobs: JobsStack) -> None:
    jobs.start()
    jobs.tell("fail-inspect")
    job_id = await jobs.make_job()
    await jobs.until(job_id, "failed")
    job = await jobs.job(job_id)
    assert job.error is not None
    assert job.error["code"] == "internal_error"
    assert "told to fail" not in str(job.error)
    assert "told to fail" in jobs.log.read_text()
