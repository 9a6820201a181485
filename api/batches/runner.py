"""Runs batches in an API process: takes leases of those that no process runs, and continues them.

Any number of processes do this at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass

import structlog

from adapters.storage.errors import StorageUnavailable
from api.batches.endpoints import ENDPOINTS
from api.batches.execution import BatchExecution, BatchSite
from batches.errors import BatchLeaseLost
from batches.input import remove_ended_inputs
from batches.lease import BatchLease, claim
from db.errors import DatabaseUnavailable

log = structlog.get_logger(__name__)

MOST_BATCHES = 64
"""Batches that a process runs at the same time."""
MOST_PER_TENANT = 4
"""Batches of a tenant that run at the same time, in all processes; the others wait for their turn."""
CLEANING_SECONDS = 30.0
"""Seconds between two removals of inputs that are not needed any more."""
CLOSING_SECONDS = 20.0
"""Seconds after which a process that shuts down leaves its batches as they are; their leases expire."""


@dataclass(frozen=True, slots=True)
class RunnerPace:
    """How a process takes leases, in seconds."""

    lease: float = 15.0
    poll: float = 1.0


class BatchRunner:
    """`owner`: name of this process in the leases. `start` it with the process and `close` it at the end."""

    def __init__(self, site: BatchSite, owner: str, pace: RunnerPace = RunnerPace()) -> None:
        self._site = site
        self._owner = owner
        self._pace = pace
        self._running: set[asyncio.Task[None]] = set()
        self._taking: asyncio.Task[None] | None = None
        self._cleaned_at = 0.0

    async def start(self) -> None:
        self._taking = asyncio.create_task(self._take(), name="batches")

    async def close(self) -> None:
        """Stops: lines that run have a few seconds to end, then the leases are released."""
        self._site.stopping.set()
        if self._taking is not None:
            await self._taking
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=CLOSING_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _take(self) -> None:
        stopping = self._site.stopping
        while not stopping.is_set():
            try:
                lease = await self._claim() if len(self._running) < MOST_BATCHES else None
                if lease is None and time.monotonic() - self._cleaned_at > CLEANING_SECONDS:
                    self._cleaned_at = time.monotonic()
                    await remove_ended_inputs(self._site.database, self._site.store)
            except (DatabaseUnavailable, StorageUnavailable) as error:
                log.warning("batches wait for a store", error=str(error))
                lease = None
            if lease is not None:
                self._running.add(asyncio.create_task(self._run(lease), name=f"batch {lease.batch.id}"))
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pace.poll):
                    await stopping.wait()

    async def _claim(self) -> BatchLease | None:
        return await claim(
            self._site.database,
            self._owner,
            endpoints=ENDPOINTS,
            seconds=self._pace.lease,
            most_per_tenant=MOST_PER_TENANT,
        )

    async def _run(self, lease: BatchLease) -> None:
        batch_id = lease.batch.id
        log.info("batch is run", batch_id=batch_id, status=lease.status, fence=lease.fence)
        self._site.metrics.running.inc()
        try:
            await BatchExecution(self._site, lease).run()
        except BatchLeaseLost:
            self._site.metrics.leases_lost.inc()
            log.warning("another process runs the batch now", batch_id=batch_id)
        except Exception:
            # Another attempt is made when the lease has expired.
            log.exception("batch was interrupted", batch_id=batch_id)
        else:
            log.info("batch is left", batch_id=batch_id, status=lease.status)
        finally:
            self._site.metrics.running.dec()
            self._running.discard(asyncio.current_task())  # type: ignore[arg-type]
