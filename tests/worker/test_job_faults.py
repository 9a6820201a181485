"""Jobs while Redis or PostgreSQL is away, and messages whose writer was killed before it sent them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
import redis.asyncio

from cli.local.postgres import serving_url, start_postgres
from cli.local.redis import start_redis
from db import schema
from db.outbox import Outbox
from db.session import EVERY_TENANT, Database
from db.tasks import JOBS_QUEUE, TaskSender
from tests.support.waiting import eventually
from tests.support.workers import ROOT
from tests.worker.jobs_stack import LEASE, JobsStack


async def test_a_job_goes_on_when_redis_is_restarted_under_it(
    database: Database, database_url: str, servers_dir: Path, tmp_path: Path
) -> None:
    """And one whose message Redis has forgotten is sent again."""
    directory = servers_dir / "jobs"
    server = start_redis(directory, ephemeral=True)
    sender = TaskSender(server.url)
    outbox = Outbox(database, sender)
    stack = JobsStack(database, database_url, server.url, tmp_path, outbox, sender)
    try:
        await stack.make_tenant()
        stack.start()
        stack.tell("hold-pack")
        job_id = await stack.make_job()
        holder = await stack.arrival(job_id, "pack")
        waiting = await stack.make_job()
        server.stop()
        await asyncio.sleep(LEASE + 1)  # the lease is kept without Redis
        server = start_redis(directory, ephemeral=True)
        assert (await stack.job(job_id)).status == "running"
        stack.untell("hold-pack")
        await stack.until(job_id, "succeeded")
        assert {pid for _, pid in stack.trace(job_id)} == {holder}, "nobody else was needed"
        await stack.assert_done_once(job_id)
        await outbox.settle()
        async with database.write(EVERY_TENANT) as session:  # as if a while had passed
            job = await session.get_one(type(await stack.job(waiting)), waiting)
            if job.status == "queued":
                job.lease_until = job.created_at
        await stack.until(waiting, "succeeded")
        await stack.assert_done_once(waiting)
    finally:
        stack.stop_all()
        await outbox.close()
        sender.close()
        server.stop()


async def test_a_job_waits_for_a_database_that_is_away(
    redis_url: str, servers_dir: Path, tmp_path: Path
) -> None:
    directory = servers_dir / "jobs-pg"
    server = start_postgres(directory)
    schema.upgrade(server.url, serving_url(server.url))
    url = serving_url(server.url)
    database, sender = Database(url), TaskSender(redis_url)
    outbox = Outbox(database, sender)
    stack = JobsStack(database, url, redis_url, tmp_path, outbox, sender)
    try:
        await stack.make_tenant()
        stack.start()
        for step in ("inspect", "calibrate"):
            stack.tell(f"hold-{step}")
            job_id = await stack.make_job()
            await stack.arrival(job_id, step)
            server.stop()
            stack.untell(f"hold-{step}")  # what the step found cannot be written now
            await stack.logs("a job waits for a service")
            await asyncio.sleep(LEASE + 1)  # longer than the job is leased
            server = start_postgres(directory)
            await stack.until(job_id, "succeeded")
            await stack.assert_done_once(job_id)
    finally:
        stack.stop_all()
        await outbox.close()
        sender.close()
        await database.close()
        server.stop()


KILLED_WRITER = """
import asyncio, os, signal, sys
from pathlib import Path
from db.outbox import Outbox
from db.session import Database
from tests.worker.jobs_stack import JobsStack

class KilledSender:
    async def send(self, task, arguments):
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    database = Database(sys.argv[1])
    outbox = Outbox(database, KilledSender())
    stack = JobsStack(database, sys.argv[1], "", Path("."), outbox, None, tenant_id=sys.argv[2])
    print(await stack.make_job(), flush=True)
    await outbox.settle()

asyncio.run(main())
"""


async def test_a_message_whose_writer_was_killed_before_sending_is_relayed(
    jobs: JobsStack, redis_client: redis.asyncio.Redis
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED_WRITER, jobs.database_url, jobs.tenant_id,
        cwd=ROOT, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode == -9
    job_id = output.decode().strip()
    assert await redis_client.llen(JOBS_QUEUE) == 0
    assert (await jobs.job(job_id)).status == "queued"
    jobs.start()
    await jobs.until(job_id, "succeeded")
    await jobs.assert_done_once(job_id)


@pytest.mark.parametrize("when", ["before it is taken", "while it runs"])
async def test_a_job_of_a_deleted_adapter_ends_as_cancelled(
    jobs: JobsStack, redis_client: redis.asyncio.Redis, when: str
) -> None:
    from adapters.bases import Bases
    from adapters.deletion import AdapterDeletion

    deletion = AdapterDeletion(jobs.database, redis_client, Bases("sapling"))
    jobs.tell("hold-pack")
    job_id = await jobs.make_job()
    adapter_id = (await jobs.job(job_id)).adapter_id
    if when == "while it runs":
        jobs.start()
        await jobs.arrival(job_id, "pack")
    await deletion.delete(jobs.tenant_id, adapter_id)
    assert (await jobs.job(job_id)).status == "cancelled"
    if when == "while it runs":
        await eventually(lambda: "is lost" in jobs.log.read_text(), 60)
    else:
        jobs.start()
    jobs.untell("hold-pack")
    other = await jobs.make_job()
    await jobs.until(other, "succeeded")
    assert (await jobs.job(job_id)).status == "cancelled"
    assert "version.packed" not in await jobs.events(job_id)
