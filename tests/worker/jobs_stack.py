"""Workers whose steps do as they are told, and the rows they work on."""

from __future__ import annotations

import os
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import redis.asyncio
from sqlalchemy import select

from adapters.jobs.models import Job
from adapters.jobs.service import JobService, queue_job
from adapters.models import Adapter, AdapterEvent, AdapterVersion, VersionState
from db.base import new_id
from db.outbox import Outbox
from db.session import EVERY_TENANT, Database
from db.tasks import QUEUES, TaskSender
from tenants.models import Tenant
from tests.support.jobs_worker import VARIABLE
from tests.support.nursery import Forked
from tests.support.waiting import eventually
from tests.support.workers import start_worker

LEASE = 3.0
IDLE_TRANSACTION = 6.0
BASE = "sapling"


@dataclass
class JobsStack:
    """Rows in `database`, workers beside it."""

    database: Database
    database_url: str
    redis_url: str
    directory: Path
    outbox: Outbox
    sender: TaskSender
    tenant_id: str = ""
    processes: list[Forked] = field(default_factory=list)

    # Workers ----------------------------------------------------------------------------------------------

    def start(self, **settings: str) -> Forked:
        """A worker of both queues, each with a child, that also sends the periodic tasks."""
        told = {
            "queues": ",".join(QUEUES),
            "concurrency": "2",
            "relay_interval": "0.3",
            "sweep_interval": "0.3",
            "meter_interval": "60",
        } | settings
        environment = {
            VARIABLE: str(self.directory),
            "ROOTSTOCK_JOBS_BASE_PATH": os.environ.get("ROOTSTOCK_JOBS_BASE_PATH", "/nowhere"),
            "ROOTSTOCK_JOBS_BASE_NAME": BASE,
            "ROOTSTOCK_JOBS_ENGINE_ENDPOINT": "ipc:///nowhere",
            "ROOTSTOCK_JOBS_ARTIFACTS_DIR": str(self.directory / "artifacts"),
            "ROOTSTOCK_STORAGE_URL": f"file://{self.directory / 'objects'}",
            "ROOTSTOCK_JOBS_LEASE_SECONDS": str(LEASE),
            "ROOTSTOCK_DB_IDLE_TRANSACTION_TIMEOUT": str(IDLE_TRANSACTION),
            "ROOTSTOCK_JOBS_MAX_ATTEMPTS": "3",
        }
        process = start_worker(
            self.database_url,
            self.redis_url,
            self.log,
            entry="tests.support.jobs_worker:main",
            environment=environment,
            **told,
        )
        self.processes.append(process)
        return process

    @property
    def log(self) -> Path:
        return self.directory / "log"

    async def logs(self, text: str) -> None:
        """Wait until a worker logs `text` once more."""
        before = self.log.stat().st_size
        await eventually(lambda: text.encode() in self.log.read_bytes()[before:], 60)

    def tell(self, what: str) -> None:
        (self.directory / what).touch()

    def untell(self, what: str) -> None:
        (self.directory / what).unlink()

    def trace(self, job_id: str) -> list[tuple[str, int]]:
        """(step, process) that came to it, in order."""
        try:
            lines = (self.directory / "trace").read_text().splitlines()
        except FileNotFoundError:
            return []
        split = [line.split() for line in lines]
        return [(step, int(pid)) for step, job, pid in split if job == job_id]

    async def arrival(self, job_id: str, step: str, times: int = 1) -> int:
        """Wait until the job came to a step so often; the process that did last."""

        def arrived() -> bool:
            return [name for name, _ in self.trace(job_id)].count(step) >= times

        await eventually(arrived, 120)
        return [pid for name, pid in self.trace(job_id) if name == step][-1]

    def stop_all(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()

    # Rows -------------------------------------------------------------------------------------------------

    @property
    def service(self) -> JobService:
        return JobService(self.database, self.outbox, lambda session, tenant_id: None)

    async def make_tenant(self) -> None:
        self.tenant_id = new_id("ten")
        async with self.database.write(EVERY_TENANT) as session:
            session.add(Tenant(id=self.tenant_id, name="acme"))

    async def make_job(self, outbox: Outbox | None = None, **parameters: object) -> str:
        """A version that has just been made, and its job, in the queue."""
        adapter_id = new_id("adp")
        async with self.database.write(EVERY_TENANT) as session:
            session.add(Adapter(id=adapter_id, tenant_id=self.tenant_id, base=BASE, name=adapter_id[-20:]))
            await session.flush()
            session.add(
                AdapterVersion(
                    adapter_id=adapter_id,
                    version=1,
                    tenant_id=self.tenant_id,
                    base_digest="b" * 64,
                    activate=True,
                    state=VersionState.VALIDATING,
                )
            )
            await session.flush()
            job = await queue_job(
                session,
                outbox or self.outbox,
                tenant_id=self.tenant_id,
                adapter_id=adapter_id,
                version=1,
                parameters={"calibration": None, "dtype": "auto", **parameters},
                created_by=None,
            )
        return job.id

    async def job(self, job_id: str) -> Job:
        return await self.service.get(self.tenant_id, job_id)

    async def version_of(self, job_id: str) -> AdapterVersion:
        job = await self.job(job_id)
        async with self.database.read(EVERY_TENANT) as session:
            query = select(AdapterVersion).where(AdapterVersion.adapter_id == job.adapter_id)
            return (await session.execute(query)).scalar_one()

    async def adapter_of(self, job_id: str) -> Adapter:
        job = await self.job(job_id)
        async with self.database.read(EVERY_TENANT) as session:
            return (await session.execute(select(Adapter).where(Adapter.id == job.adapter_id))).scalar_one()

    async def events(self, job_id: str) -> list[str]:
        async with self.database.read(EVERY_TENANT) as session:
            query = select(AdapterEvent).where(AdapterEvent.job_id == job_id).order_by(AdapterEvent.id)
            return [event.type for event in (await session.execute(query)).scalars()]

    async def until(self, job_id: str, status: str, seconds: float = 120.0) -> float:
        async def reached() -> bool:
            return (await self.job(job_id)).status == status

        return await eventually(reached, seconds)

    async def assert_done_once(self, job_id: str) -> list[str]:
        """The job succeeded, its version serves, and everything is said to have happened once."""
        job, version = await self.job(job_id), await self.version_of(job_id)
        assert (job.status, job.error, job.lease_owner, job.wanted) == ("succeeded", None, None, None)
        assert (job.progress, job.result) == (1.0, {"ready": True})
        assert version.state == "ready"
        assert version.dtype == "float8_e4m3"
        assert version.digest == version.artifacts["float8_e4m3"]["digest"]
        assert (await self.adapter_of(job_id)).active_version == 1
        events = await self.events(job_id)
        once = (
            "job.created", "version.inspected", "version.packed", "version.calibrated", "version.ready",
            "version.activated", "job.succeeded",
        )  # fmt: skip
        assert {name: count for name, count in Counter(events).items() if name in once} == dict.fromkeys(
            once, 1
        )
        return events


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


async def queue_length(client: redis.asyncio.Redis, queue: str) -> int:
    return int(await client.llen(queue))
