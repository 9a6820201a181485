"""Runs the worker process: Celery's consumer with a pool of forked children, and the schedule.

A worker that runs jobs loads their libraries, torch above all, before it forks: the first job does not wait
for them, a replaced child starts at once, and the children share the memory.

The schedule ("beat") runs in a thread of the worker instead of a process of its own: it keeps no state, a
worker killed with SIGKILL cannot leave it behind sending tasks for ever, and there is one process fewer to
supervise. Large deployments run beat in some workers only (ROOTSTOCK_WORKER_BEAT). On SIGTERM the worker
finishes the running tasks (jobs are released at once, for another worker), then exits 0.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
import warnings
from typing import Any

import structlog
from celery import Celery, signals
from celery.beat import EmbeddedService, Scheduler
from celery.exceptions import SecurityWarning
from sqlalchemy.orm import configure_mappers

from adapters.served_bases import FurtherBases
from adapters.storage import StorageSettings
from billing.notifications.settings import NotificationSettings
from db.errors import DatabaseUnavailable, UnusableDatabase
from db.schema import assert_fit_to_serve
from db.session import Database
from db.settings import DatabaseSettings
from db.tasks import JOBS_QUEUE
from telemetry import logs
from telemetry.trace_setup import check_tracing, open_tracing
from tenants.retention.settings import RetentionSettings
from worker.ack_watch import AckWatch
from worker.app import create_app
from worker.cpu_priority import lower_priority
from worker.runtime import OpenPipeline, Runtime
from worker.settings import JobsSettings, WorkerSettings
from worker.tasks import register
from worker.tracing import TaskSpans

log = structlog.get_logger(__name__)

PR_SET_PDEATHSIG = 1


def run(settings: WorkerSettings | None = None, open_pipeline: OpenPipeline | None = None) -> int:
    """Runs until SIGTERM. Returns the exit status: 1 before anything starts if the database cannot be used.

    Args:
        settings: default: those of the environment.
        open_pipeline: what runs jobs, replaced in tests.
    """
    settings = settings or WorkerSettings()  # type: ignore[call-arg]
    database = DatabaseSettings()  # type: ignore[call-arg]
    logs.configure("worker", settings.log_level)
    # Celery warns about running as root, as in a container, because pickled tasks are code; ours are JSON.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    try:
        check_tracing()
        asyncio.run(_check_schema(database))
    except (UnusableDatabase, DatabaseUnavailable, ValueError) as error:
        log.critical("worker cannot start", error=str(error))
        return 1
    app = create_app(settings)
    runtime = _runtime(settings, database, open_pipeline)
    register(app, runtime)
    worker_pid = os.getpid()

    def in_child(**_: Any) -> None:
        _die_with_parent(worker_pid)
        runtime.shutdown.inherit()
        lower_priority(settings.nice)
        _trace_tasks()
        runtime.open_ahead()

    signals.worker_process_init.connect(in_child, weak=False)
    signals.worker_process_shutdown.connect(lambda **_: runtime.close(), weak=False)
    signals.worker_shutting_down.connect(lambda **_: runtime.shutdown.announce(), weak=False)
    configure_mappers()  # each child would, at its first query
    app.steps["consumer"].add(AckWatch)
    if settings.beat:
        _run_beat_with_the_worker(app)
    worker = app.Worker(
        concurrency=settings.concurrency,
        pool="prefork",
        queues=list(settings.queue_names),
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        loglevel=settings.log_level,
        quiet=True,
    )
    worker.start()
    return worker.exitcode or 0


def _runtime(
    settings: WorkerSettings, database: DatabaseSettings, open_pipeline: OpenPipeline | None
) -> Runtime:
    retention = RetentionSettings().bounds()
    if JOBS_QUEUE not in settings.queue_names:
        return Runtime(settings, database, notifications=NotificationSettings(), retention=retention)
    if open_pipeline is None:
        from worker.assembly import open_pipeline  # imports torch
    jobs, storage = JobsSettings(), StorageSettings()  # type: ignore[call-arg]
    bases = FurtherBases().beside(jobs.first_base)
    return Runtime(settings, database, jobs, storage, open_pipeline, NotificationSettings(), bases, retention)


def _trace_tasks() -> None:
    """Records the tasks of this child, if tracing is on: what exports does not survive a fork."""
    tracing = open_tracing("rootstock-worker", f"{socket.gethostname()}:{os.getpid()}")
    if tracing is not None:
        TaskSpans(tracing).connect()
        signals.worker_process_shutdown.connect(lambda **_: tracing.close(), weak=False)


async def _check_schema(settings: DatabaseSettings) -> None:
    database = Database(settings.url, pool_size=1)
    try:
        await assert_fit_to_serve(database)
    finally:
        await database.close()


def _run_beat_with_the_worker(app: Celery) -> None:
    beat = EmbeddedService(app, thread=True, scheduler_cls=_EagerScheduler)

    def start(**_: Any) -> None:
        beat.daemon = True
        beat.start()

    signals.worker_ready.connect(start, weak=False)
    signals.worker_shutting_down.connect(lambda **_: beat.service.stop(wait=False), weak=False)


class _EagerScheduler(Scheduler):
    """Keeps no state between runs and sends everything once at the start, so no partition is late."""

    def setup_schedule(self) -> None:
        super().setup_schedule()
        long_ago = self.app.now().replace(year=2000)
        for entry in self.schedule.values():
            entry.last_run_at = long_ago


def _die_with_parent(parent: int) -> None:
    """Kills this process with its parent: children of a killed worker would wait for tasks for ever."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before the call
            os._exit(1)


if __name__ == "__main__":
    sys.exit(run())
