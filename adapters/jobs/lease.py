"""Leases one job to one worker: claimed in the job's row, renewed by a heartbeat, fenced, released.

A lease also tells its worker when to stop: when it is lost, when the tenant cancels or pauses the job, when
the worker shuts down.

The lease's fencing token is the job's `fence`, incremented by every claim. Every write goes through
`Lease.write`, which locks the job's row and compares the fence, or raises LeaseLost: a worker that stalled
while another took over can no longer change anything.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import structlog

from adapters.events import Level
from adapters.jobs.errors import LeaseLost
from adapters.jobs.models import Job, JobStatus
from adapters.jobs.repository import Beat, JobLeases, record_job_event
from db.errors import DatabaseUnavailable
from db.session import EVERY_TENANT, Database, WriteSession
from telemetry.tasks import discard

log = structlog.get_logger(__name__)
T = TypeVar("T")

LEASE_SECONDS = 30.0
TICK = 0.5
"""Seconds between two checks of what the tenant wants, and between two writes of progress."""
UNWIND_SECONDS = 5.0
"""Seconds interrupted work may take to clean up before it is abandoned."""

Reason = Literal["cancel", "pause", "shutdown"]


class Interrupted(Exception):
    """The work must stop here. Not a failure."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass
class LeaseTransaction:
    """A transaction of the lease's holder; it commits when the block ends."""

    session: WriteSession
    job: Job
    """Locked and current."""

    def record_event(
        self, event_type: str, message: str, *, level: Level = "info", data: dict[str, Any] | None = None
    ) -> None:
        """Records an event of the job."""
        record_job_event(self.session, self.job, event_type, message, level=level, data=data)


class Lease:
    """The lease of one job, held by one worker. Created by `claim`."""

    def __init__(
        self, database: Database, job: Job, seconds: float, stopping: asyncio.Event, tick: float = TICK
    ) -> None:
        self.job = job
        """The job as it was when it was claimed."""
        self.fence = job.fence
        self._database = database
        self._seconds = seconds
        self._stopping = stopping
        self._tick = tick
        self._note: Beat | None = None
        self._concluding = False

    @asynccontextmanager
    async def write(self) -> AsyncIterator[LeaseTransaction]:
        """Opens a transaction that commits only if this lease is the latest. Raises LeaseLost, Interrupted
        when the tenant has cancelled the job, DatabaseUnavailable.
        """
        async with self._database.write(self.job.tenant_id) as session:
            job = await JobLeases(session).hold(self.job.id, self.fence)
            if job is None:
                raise LeaseLost(self.job.id, self.fence)
            if job.wanted == "cancel":
                raise Interrupted("cancel")
            yield LeaseTransaction(session, job)

    @asynccontextmanager
    async def conclude(self) -> AsyncIterator[LeaseTransaction]:
        """Opens the transaction that ends the job, like `write`; work after it is not interrupted although
        the lease has ended.
        """
        self._concluding = True
        try:
            async with self.write() as held:
                yield held
        except BaseException:
            self._concluding = False
            raise

    @asynccontextmanager
    async def give_up(self) -> AsyncIterator[LeaseTransaction]:
        """Opens the last transaction, like `write`, even if the tenant cancelled the job; the lease ends with
        it.
        """
        async with self._database.write(self.job.tenant_id) as session:
            job = await JobLeases(session).hold(self.job.id, self.fence)
            if job is None:
                raise LeaseLost(self.job.id, self.fence)
            job.lease_owner = job.lease_until = job.estimated_finish_at = None
            yield LeaseTransaction(session, job)
            assert job.status != JobStatus.RUNNING, "no worker would continue it"

    def progress(self, phase: str, share: float, finish_in: float | None = None) -> None:
        """Notes the progress. It is written at the next tick, so this may be called often."""
        self._note = Beat(phase=phase, progress=min(1.0, max(0.0, share)), finish_in=finish_in)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` and returns its result, renewing the lease meanwhile.

        Raises LeaseLost or Interrupted, after cancelling the work, at most about a second after the reason
        arose.
        """
        doing = asyncio.create_task(work, name=f"job {self.job.id}")
        keeping = asyncio.create_task(self._keep(), name=f"lease of {self.job.id}")
        try:
            await asyncio.wait({doing, keeping}, return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return doing.result()
            await self._unwind(doing)
            keeping.result()
            raise AssertionError("keeping a lease ends by an exception only")
        finally:
            doing.cancel()
            await discard(keeping)

    async def _unwind(self, doing: asyncio.Task[T]) -> None:
        doing.cancel()
        await asyncio.wait({doing}, timeout=UNWIND_SECONDS)
        if not doing.done():
            log.warning("interrupted work is still running; its writes are fenced off", job_id=self.job.id)
        elif not doing.cancelled() and doing.exception() is not None:
            log.info("interrupted work failed", job_id=self.job.id, error=repr(doing.exception()))

    async def _keep(self) -> None:
        renewed = time.monotonic()
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            while True:
                await asyncio.wait({stopped}, timeout=self._tick)
                if self._stopping.is_set():
                    raise Interrupted("shutdown")
                due = time.monotonic() - renewed >= self._seconds / 5
                try:
                    await self._beat(renew=due)
                except DatabaseUnavailable as error:
                    # The work continues. No worker can take the lease while the database is away.
                    log.warning("lease cannot be renewed", job_id=self.job.id, error=str(error))
                    continue
                if due:
                    renewed = time.monotonic()
        finally:
            stopped.cancel()

    async def _beat(self, *, renew: bool) -> None:
        note, self._note = self._note or Beat(), None
        beat = Beat(self._seconds if renew else None, note.phase, note.progress, note.finish_in)
        idle = beat == Beat()
        session_of = self._database.read if idle else self._database.write
        async with session_of(self.job.tenant_id) as session:
            answer = await JobLeases(session).beat(self.job.id, self.fence, beat)
        if self._concluding:
            return
        if answer is None:
            raise LeaseLost(self.job.id, self.fence)
        if answer[0] == "cancel":
            raise Interrupted("cancel")
        if answer[0] == "pause":
            raise Interrupted("pause")


async def claim(
    database: Database,
    job_id: str,
    owner: str,
    stopping: asyncio.Event,
    *,
    seconds: float = LEASE_SECONDS,
    owner_gone: str | None = None,
    tick: float = TICK,
) -> Lease | None:
    """Takes the lease of a job; returns None when the job has ended, is paused, or is leased to another
    worker.

    `stopping`: set when this worker shuts down. `owner_gone`: see `JobLeases.claim`.
    """
    async with database.write(EVERY_TENANT) as session:
        job = await JobLeases(session).claim(job_id, owner, seconds, owner_gone=owner_gone)
        if job is None:
            return None
        record_job_event(
            session, job, "job.started", f"Attempt {job.attempts} started.", data={"attempt": job.attempts}
        )
    return Lease(database, job, seconds, stopping, tick)
