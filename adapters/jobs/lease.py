"""The right to work on one job: taken from the row, kept by a heartbeat, fenced, given back.

Owns who works on a job, and how whoever does learns that he shall stop: the lease is lost, the tenant wants
the job cancelled or paused, the worker is told to end. Refuses to know what the work is.

A lease is the job's fence, counted up by every claim. Every write of the work happens in `Lease.write`, which
locks the job's row and finds the fence as it was, or raises LeaseLost: a worker that slept while another took
over changes nothing any more, however late it wakes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from adapters.events import Level
from adapters.jobs.errors import LeaseLost
from adapters.jobs.models import Job, JobStatus
from adapters.jobs.repository import Beat, JobLeases, tell
from db.errors import DatabaseUnavailable
from db.session import EVERY_TENANT, Database, WriteSession

logger = logging.getLogger(__name__)
T = TypeVar("T")

LEASE_SECONDS = 30.0
TICK = 0.5
"""Seconds between two looks at what the tenant wants, and between two notes of progress."""
UNWIND_SECONDS = 5.0
"""How long interrupted work may take to clean up before it is left behind."""

Reason = Literal["cancel", "pause", "shutdown"]


class Interrupted(Exception):
    """The work shall stop here. Not a failure."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass
class Held:
    """A transaction of the lease's holder: commits with the block."""

    session: WriteSession
    job: Job
    """Locked, and as it is now."""

    def tell(
        self, event_type: str, message: str, *, level: Level = "info", data: dict[str, Any] | None = None
    ) -> None:
        """Record an event of the job."""
        tell(self.session, self.job, event_type, message, level=level, data=data)


class Lease:
    """Of one job, by one worker. Made by `claim`."""

    def __init__(
        self, database: Database, job: Job, seconds: float, stopping: asyncio.Event, tick: float = TICK
    ) -> None:
        self.job = job
        """As it was when it was claimed."""
        self.fence = job.fence
        self._database = database
        self._seconds = seconds
        self._stopping = stopping
        self._tick = tick
        self._note: Beat | None = None
        self._concluding = False

    @asynccontextmanager
    async def write(self) -> AsyncIterator[Held]:
        """A transaction that commits only if this lease is the latest. Raises LeaseLost, Interrupted when the
        tenant has cancelled the job meanwhile, DatabaseUnavailable.
        """
        async with self._database.write(self.job.tenant_id) as session:
            job = await JobLeases(session).hold(self.job.id, self.fence)
            if job is None:
                raise LeaseLost(self.job.id, self.fence)
            if job.wanted == "cancel":
                raise Interrupted("cancel")
            yield Held(session, job)

    @asynccontextmanager
    async def conclude(self) -> AsyncIterator[Held]:
        """As `write`, for the transaction that ends the job; what follows it in the work is not interrupted
        for the lease, which is over with it.
        """
        self._concluding = True
        try:
            async with self.write() as held:
                yield held
        except BaseException:
            self._concluding = False
            raise

    @asynccontextmanager
    async def give_up(self) -> AsyncIterator[Held]:
        """As `write`, for the last one: whatever the tenant wants, and the lease ends with it."""
        async with self._database.write(self.job.tenant_id) as session:
            job = await JobLeases(session).hold(self.job.id, self.fence)
            if job is None:
                raise LeaseLost(self.job.id, self.fence)
            job.lease_owner = job.lease_until = job.estimated_finish_at = None
            yield Held(session, job)
            assert job.status != JobStatus.RUNNING, "nobody would go on with it"

    def progress(self, phase: str, share: float, finish_in: float | None = None) -> None:
        """Note how far the work is. Written at the next tick, so it may be told as often as one likes."""
        self._note = Beat(phase=phase, progress=min(1.0, max(0.0, share)), finish_in=finish_in)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` and return what it returns, keeping the lease meanwhile.

        Raises LeaseLost or Interrupted, having cancelled the work, at most about a second after the reason.
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
            for task in (doing, keeping):
                task.cancel()
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await keeping

    async def _unwind(self, doing: asyncio.Task[T]) -> None:
        doing.cancel()
        await asyncio.wait({doing}, timeout=UNWIND_SECONDS)
        if not doing.done():
            logger.warning("job %s: interrupted work goes on; its writes are fenced off", self.job.id)
        elif not doing.cancelled() and doing.exception() is not None:
            logger.info("job %s: interrupted work ended with %r", self.job.id, doing.exception())

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
                    # The work goes on. Nobody can take the lease while the database is away.
                    logger.warning("job %s: the lease cannot be renewed now: %s", self.job.id, error)
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
    """Take the lease of a job; None when it has ended, is paused, or somebody else has it.

    `stopping`: set when this worker shall end. `owner_gone`: see `JobLeases.claim`.
    """
    async with database.write(EVERY_TENANT) as session:
        job = await JobLeases(session).claim(job_id, owner, seconds, owner_gone=owner_gone)
        if job is None:
            return None
        tell(session, job, "job.started", f"Attempt {job.attempts} begins.", data={"attempt": job.attempts})
    return Lease(database, job, seconds, stopping, tick)
