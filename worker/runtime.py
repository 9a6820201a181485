"""Holds what tasks run on: one event loop, one database pool and one Redis client per process, opened on use.

Services are asynchronous, Celery's processes are not: each runs one task at a time, so a loop that lives as
long as its process keeps connections open between tasks.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar

import redis.asyncio

from adapters.jobs.execution import Pipeline, attempt, retry_unavailable
from adapters.jobs.lease import Lease, claim
from adapters.jobs.repository import JobLeases
from adapters.served_bases import ServedBase
from adapters.storage import ObjectStore, StorageSettings, open_store
from billing.charges import ChargeService
from billing.metering import JournalMeter
from billing.notifications.settings import NotificationSettings
from billing.request_metadata.intake import MetadataIntake
from billing.settling import ReservationSettlement
from db.outbox import Outbox
from db.session import EVERY_TENANT, Database
from db.settings import DatabaseSettings
from db.tasks import TaskSender
from sla.capacity.sampling import CapacitySampling
from sla.folding import SlaFolding
from sla.status.sampling import StatusSampling
from tenants.quotas.journal import JournalSettling
from tenants.refusals.intake import RefusalIntake
from tenants.retention.classes import DEFAULT_BOUNDS, RetentionBounds
from worker.background_thread import BackgroundThread
from worker.settings import JobsSettings, WorkerSettings
from worker.shutdown import ShutdownPipe

T = TypeVar("T")

OpenPipeline = Callable[["Runtime", JobsSettings, AsyncExitStack], Awaitable[Pipeline]]
"""Builds what runs jobs; what must be closed with the process goes onto the stack."""


class Runtime:
    """The resources of one process: created in the parent, opened by the child at its first task."""

    database: Database
    redis: redis.asyncio.Redis
    outbox: Outbox
    meter: JournalMeter
    charges: ChargeService
    service_levels: SlaFolding
    status: StatusSampling
    capacity: CapacitySampling
    refusals: RefusalIntake
    request_metadata: MetadataIntake
    store: ObjectStore
    """Only in workers that run jobs."""

    def __init__(
        self,
        settings: WorkerSettings,
        database: DatabaseSettings,
        jobs: JobsSettings | None = None,
        storage: StorageSettings | None = None,
        open_pipeline: OpenPipeline | None = None,
        notifications: NotificationSettings | None = None,
        bases: Sequence[ServedBase] = (),
        retention: RetentionBounds = DEFAULT_BOUNDS,
    ) -> None:
        """`jobs`, `storage`, `open_pipeline` and `bases`, the base models served, are for workers that run
        jobs.
        """
        self.notifications = notifications or NotificationSettings()
        self.database_url = database.url
        self.delivering = BackgroundThread("delivering notifications")
        self.settings = settings
        self.shutdown = ShutdownPipe()
        self.jobs = jobs
        self.bases = bases
        self.retention = retention
        self._storage = storage
        self._open_pipeline = open_pipeline
        self._database_settings = database
        self._runner: asyncio.Runner | None = None
        self._pid = 0
        self._worker_id = f"{socket.gethostname()}:{token_hex(4)}"
        """The same in all children of a worker, and different in every worker."""

    @property
    def engine_endpoints(self) -> tuple[str, ...]:
        """All engines: those configured, else those that jobs use."""
        return self.settings.engines or tuple(one for base in self.bases for one in base.engines)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` on this process's loop and returns its result."""
        self._open()
        assert self._runner is not None
        # The task's own context, which names its span: the runner's is that of its first task.
        return self._runner.run(work, context=contextvars.copy_context())

    def open_ahead(self) -> None:
        """Opens what jobs need, so that the first job does not wait for it."""
        if self._open_pipeline is not None:
            self.run(self._pipeline())

    def _open(self) -> None:
        if self._pid == os.getpid():
            return
        # A forked child must not use its parent's loop and sockets.
        self._pid = os.getpid()
        self._runner = asyncio.Runner()
        self._opened = AsyncExitStack()
        self._made: Pipeline | None = None
        self._stopping = asyncio.Event()
        self.shutdown.watch(self._runner.get_loop(), self._stopping)
        self.database = Database(
            self._database_settings.url,
            pool_size=2,
            pool_overflow=2,
            pool_timeout=self._database_settings.pool_timeout,
            statement_timeout=self._database_settings.statement_timeout,
            idle_transaction_timeout=self._database_settings.idle_transaction_timeout,
            prepared_statements=self._database_settings.prepared_statements,
        )
        self.redis = redis.asyncio.Redis.from_url(
            self.settings.redis_url, socket_timeout=10, socket_connect_timeout=5, health_check_interval=10
        )
        if self._storage is not None:
            self.store = open_store(self._storage)
        self._sender = TaskSender(self.settings.redis_url)
        self.outbox = Outbox(self.database, self._sender)
        consumer = f"{socket.gethostname()}:{self._pid}"
        self.service_levels = SlaFolding(self.database, self.redis, consumer)
        self.status = StatusSampling(self.database, self.redis)
        self.capacity = CapacitySampling(self.database, self.redis)
        self.refusals = RefusalIntake(self.database, self.redis, consumer)
        self.request_metadata = MetadataIntake(self.database, self.redis, consumer)
        self.charges = ChargeService(self.database)
        self.meter = JournalMeter(
            self.database,
            self.redis,
            consumer,
            batch_size=self.settings.meter_batch,
            stale_after=self.settings.meter_stale_after,
            on_ended=ReservationSettlement(JournalSettling(self.redis)),
        )

    # Jobs ---------------------------------------------------------------------------------------------------

    async def run_job(self, job_id: str) -> None:
        """Makes one attempt at a job, unless it is leased or has ended. Raises DatabaseUnavailable."""
        assert self.jobs is not None, "a worker without jobs listens to no queue of jobs"
        pipeline = await self._pipeline()  # before the lease: if it fails here, another worker may succeed
        lease = await retry_unavailable(lambda: self._claim(job_id))
        if lease is not None:
            await attempt(lease, pipeline, self.outbox, max_attempts=self.jobs.max_attempts)
            await self.outbox.settle()

    async def _claim(self, job_id: str) -> Lease | None:
        assert self.jobs is not None
        async with self.database.read(EVERY_TENANT) as session:
            holder = await JobLeases(session).owner(job_id)
        return await claim(
            self.database,
            job_id,
            f"{self._worker_id}:{self._pid}",
            self._stopping,
            seconds=self.jobs.lease_seconds,
            owner_gone=holder if holder is not None and self._is_gone(holder) else None,
        )

    def _is_gone(self, holder: str) -> bool:
        """Whether a lease's holder is known to be dead: a former child of this worker. Leases of other
        workers must expire.
        """
        worker_id, _, pid = holder.rpartition(":")
        if worker_id != self._worker_id:
            return False
        children = Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children")
        try:
            return pid == str(self._pid) or pid not in children.read_text().split()
        except OSError:
            return False

    async def _pipeline(self) -> Pipeline:
        if self._made is None:
            assert self._open_pipeline is not None
            assert self.jobs is not None
            self._made = await self._open_pipeline(self, self.jobs, self._opened)
        return self._made

    # The end ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes all connections. They are opened again on use."""
        if self._pid != os.getpid() or self._runner is None:
            return
        self.delivering.close()
        self._runner.run(self._close())
        self._runner.close()
        self._runner = None
        self._pid = 0

    async def _close(self) -> None:
        await self._opened.aclose()
        await self.outbox.close()
        self._sender.close()
        await self.redis.aclose()
        await self.database.close()
