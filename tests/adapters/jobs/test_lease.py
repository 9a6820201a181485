"""Leases on a real database: one holder, renewed, fenced, and told to stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text

from adapters.jobs.errors import JobUnfinished, LeaseLost
from adapters.jobs.execution import attempt
from adapters.jobs.lease import Interrupted, Lease, claim
from adapters.jobs.models import Job, JobStatus
from adapters.jobs.requeue import requeue_overdue
from adapters.jobs.service import JobService, queue_job
from db.outbox import Outbox
from db.session import EVERY_TENANT, Database, WriteSession
from db.tasks import TaskSender
from tenants.models import Tenant
from tests.support.waiting import eventually

TENANT = "ten_1"


@pytest.fixture
async def outbox(database: Database, redis_url: str) -> AsyncIterator[Outbox]:
    async with database.write(EVERY_TENANT) as session:
        session.add(Tenant(id=TENANT, name="acme"))
    sender = TaskSender(redis_url)
    opened = Outbox(database, sender)
    yield opened
    await opened.close()
    sender.close()


async def queue(database: Database, outbox: Outbox, adapter_id: str = "adp_1") -> str:
    async with database.write(EVERY_TENANT) as session:
        job = await queue_job(
            session,
            outbox,
            tenant_id=TENANT,
            adapter_id=adapter_id,
            version=1,
            parameters={},
            created_by=None,
        )
    return job.id


async def taken(
    database: Database, job_id: str, owner: str = "one", *, seconds: float = 30.0, tick: float = 0.05
) -> Lease:
    lease = await claim(database, job_id, owner, asyncio.Event(), seconds=seconds, tick=tick)
    assert lease is not None
    return lease


async def row(database: Database, job_id: str) -> Job:
    async with database.read(EVERY_TENANT) as session:
        return await session.get_one(Job, job_id)


async def expire(database: Database, job_id: str) -> None:
    async with database.write(EVERY_TENANT) as session:
        await session.execute(text("UPDATE jobs SET lease_until = now() - interval '1 second'"))


async def test_of_twenty_who_claim_at_once_one_gets_the_job(database: Database, outbox: Outbox) -> None:
    job_id = await queue(database, outbox)
    stopping = asyncio.Event()
    got = await asyncio.gather(*(claim(database, job_id, f"worker-{n}", stopping) for n in range(20)))
    (lease,) = [one for one in got if one is not None]
    job = await row(database, job_id)
    assert (job.status, job.fence, job.attempts) == ("running", 1, 1)
    assert job.lease_owner == lease.job.lease_owner


async def test_a_version_has_one_job_at_a_time(database: Database, outbox: Outbox) -> None:
    job_id = await queue(database, outbox)
    with pytest.raises(JobUnfinished) as refused:
        await queue(database, outbox)
    assert refused.value.job_id == job_id


async def test_only_the_latest_lease_writes(database: Database, outbox: Outbox) -> None:
    job_id = await queue(database, outbox)
    early = await taken(database, job_id, "early")
    async with early.write() as held:
        held.job.phase = "packing"
    await expire(database, job_id)
    late = await taken(database, job_id, "late")
    assert (early.fence, late.fence) == (1, 2)

    async def write_late() -> None:
        async with early.write() as held:
            held.job.phase = "calibrating"

    with pytest.raises(LeaseLost):
        await write_late()
    with pytest.raises(LeaseLost):
        await early.run(asyncio.sleep(10))
    assert (await row(database, job_id)).phase == "packing"


async def test_whose_holder_is_known_to_be_dead_is_taken_at_once(database: Database, outbox: Outbox) -> None:
    job_id = await queue(database, outbox)
    await taken(database, job_id, "host:1")
    stopping = asyncio.Event()
    assert await claim(database, job_id, "host:2", stopping, owner_gone="host:3") is None
    assert await claim(database, job_id, "host:2", stopping, owner_gone="host:1") is not None


async def test_a_lease_is_renewed_while_the_work_runs_and_not_after_it(
    database: Database, outbox: Outbox
) -> None:
    job_id = await queue(database, outbox)
    lease = await taken(database, job_id, seconds=3.0)

    async def work() -> str:
        for _ in range(15):
            await asyncio.sleep(0.3)
            assert await claim(database, job_id, "other", asyncio.Event()) is None
        return "done"

    assert await lease.run(work()) == "done"

    async def free() -> bool:
        return await claim(database, job_id, "other", asyncio.Event()) is not None

    await eventually(free)


@pytest.mark.parametrize("wanted", ["cancel", "pause"])
async def test_what_the_tenant_wants_interrupts_the_work(
    database: Database, outbox: Outbox, wanted: str
) -> None:
    job_id = await queue(database, outbox)
    lease = await taken(database, job_id, tick=0.5)
    service = JobService(database, outbox, lambda session, tenant_id: None)
    cleaned = []

    async def work() -> None:
        await getattr(service, wanted)(TENANT, job_id)
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append(True)

    began = time.monotonic()
    with pytest.raises(Interrupted) as interrupted:
        await lease.run(work())
    assert (interrupted.value.reason, cleaned) == (wanted, [True])
    assert time.monotonic() - began < 30, "long before the work would have ended"


async def test_a_worker_told_to_end_interrupts_the_work(database: Database, outbox: Outbox) -> None:
    job_id = await queue(database, outbox)
    stopping = asyncio.Event()
    lease = await claim(database, job_id, "one", stopping)
    assert lease is not None
    asyncio.get_running_loop().call_later(0.2, stopping.set)
    with pytest.raises(Interrupted) as interrupted:
        await lease.run(asyncio.sleep(60))
    assert interrupted.value.reason == "shutdown"


async def test_what_the_work_raises_comes_out_of_it(database: Database, outbox: Outbox) -> None:
    lease = await taken(database, await queue(database, outbox))

    async def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await lease.run(work())


async def test_a_cancelled_job_is_not_finished_as_done(database: Database, outbox: Outbox) -> None:
    """Asked for between the last look and the last write."""
    job_id = await queue(database, outbox)
    lease = await taken(database, job_id)
    await JobService(database, outbox, lambda session, tenant_id: None).cancel(TENANT, job_id)

    async def finish() -> None:
        async with lease.conclude() as held:
            held.job.status = JobStatus.SUCCEEDED

    with pytest.raises(Interrupted):
        await finish()
    assert (await row(database, job_id)).status == "running"


async def test_overdue_jobs_are_sent_again_once(database: Database, outbox: Outbox) -> None:
    held, waiting, fresh = [await queue(database, outbox, f"adp_{n}") for n in range(3)]
    await taken(database, held)
    await expire(database, held)
    async with database.write(EVERY_TENANT) as session:  # all but one are overdue
        await session.execute(
            text("UPDATE jobs SET lease_until = now() + interval '1 minute' WHERE id = :id"), {"id": fresh}
        )
    swept = await asyncio.gather(*(requeue_overdue(database, outbox) for _ in range(4)))
    assert sum(swept) == 2
    assert await requeue_overdue(database, outbox) == 0
    async with database.read(EVERY_TENANT) as session:
        lost = "SELECT job_id FROM adapter_events WHERE type = 'job.worker_lost'"
        assert list((await session.execute(text(lost))).scalars()) == [held]
    assert (await row(database, held)).status == (await row(database, waiting)).status == "queued"


async def test_a_pause_taken_back_before_the_worker_gave_up_is_no_pause(
    database: Database, outbox: Outbox
) -> None:
    """The worker heard of it, the tenant resumed the job, and only then is the end of the attempt written."""
    job_id = await queue(database, outbox)
    lease = await taken(database, job_id, tick=60)
    service = JobService(database, outbox, lambda session, tenant_id: None)
    await service.pause(TENANT, job_id)

    class Heard:
        async def run(self, lease: Lease) -> None:
            await service.resume(TENANT, job_id)
            raise Interrupted("pause")

        def announce(self, session: WriteSession, tenant_id: str) -> None: ...

    await attempt(lease, Heard(), outbox)
    found = await row(database, job_id)
    assert (found.status, found.wanted, found.attempts) == (JobStatus.QUEUED, None, 0)
    assert await taken(database, job_id)
