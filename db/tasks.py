"""Sends tasks to the workers' queues: routes each task to its queue and adapts the broker's URL for Celery.

Used by processes that run no tasks themselves: a task's name and arguments are all that senders and workers
share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from celery import Celery
from kombu import Queue
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from telemetry.trace_context import current_trace

QUEUE = "rootstock"
"""The queue of short tasks: metering, clean-up, relaying."""
JOBS_QUEUE = "rootstock.jobs"
"""The queue of jobs that take seconds to minutes, so that short tasks never wait behind one."""
QUEUES = (QUEUE, JOBS_QUEUE)

SWEEP_STORAGE = "adapters.sweep_storage"
PURGE_DELETED = "adapters.purge_deleted"
SETTLE_UPLOADS = "adapters.settle_uploads"
SIGN_VERSIONS = "adapters.sign_versions"
CHECK_SIGNATURES = "adapters.check_signatures"
SETTLE_DELETIONS = "retention.settle_deletions"
CLOSE_MONTHS = "billing.close_months"
RECONCILE = "billing.reconcile"
RECONCILE_NOW = "billing.reconcile_now"
TRACEPARENT = "traceparent"
"""Header of a message that names the span that sent it, as in W3C Trace Context."""
RUN_JOB = "adapters.run_job"
RUN_JOB_EXPIRES = 120.0
"""Seconds after which a message that no worker took expires. Waiting callers send another one by then, so
that there is about one message per job at a time.
"""


@dataclass(frozen=True, slots=True)
class Route:
    """A task's queue, and the seconds after which its messages expire."""

    queue: str = QUEUE
    expires: float | None = None


ROUTES: dict[str, Route] = {
    RUN_JOB: Route(JOBS_QUEUE, RUN_JOB_EXPIRES),
    SWEEP_STORAGE: Route(JOBS_QUEUE),
    PURGE_DELETED: Route(JOBS_QUEUE),
    SETTLE_UPLOADS: Route(JOBS_QUEUE),
    SIGN_VERSIONS: Route(JOBS_QUEUE),
    CHECK_SIGNATURES: Route(JOBS_QUEUE),
    SETTLE_DELETIONS: Route(JOBS_QUEUE),
    CLOSE_MONTHS: Route(JOBS_QUEUE),  # takes as long as there are tenants, and metering must not wait
    RECONCILE: Route(JOBS_QUEUE),
    RECONCILE_NOW: Route(JOBS_QUEUE),
}
"""Tasks that do not go to `QUEUE` without expiry."""


class TaskQueueUnavailable(RuntimeError):
    """Redis did not accept a message: a retry may succeed."""


class TaskSender:
    """A process's connection to the task queues, opened at the first send. `close` it at the end."""

    def __init__(self, redis_url: str, *, timeout: float = 2.0) -> None:
        """`timeout`: seconds to wait for Redis, both to connect and for an answer."""
        self._app = Celery("rootstock-sender", broker=broker_url(redis_url), set_as_current=False)
        self._app.conf.update(
            task_serializer="json",
            task_ignore_result=True,
            task_queues=[Queue(name) for name in QUEUES],
            task_create_missing_queues=False,
            broker_connection_timeout=timeout,
            # Celery's defaults suit workers: they would keep the caller of a request waiting.
            broker_transport_options={
                "max_retries": 0,
                "socket_timeout": timeout,
                "socket_connect_timeout": timeout,
                "socket_keepalive": True,
                "health_check_interval": 10,
            },
        )
        # The producer blocks. It has its own threads: a hanging Redis must not exhaust the process's default
        # ones.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="task-sender")

    async def send(self, task: str, arguments: Mapping[str, Any]) -> None:
        """Queues a task, in the trace of the caller if it has one. Raises TaskQueueUnavailable, after which
        it may be queued or not.
        """
        loop, trace = asyncio.get_running_loop(), current_trace()
        headers = {} if trace is None else {TRACEPARENT: trace.traceparent}
        await loop.run_in_executor(self._threads, self._send, task, dict(arguments), headers)

    def _send(self, task: str, arguments: dict[str, Any], headers: dict[str, str]) -> None:
        route = ROUTES.get(task, Route())
        try:
            self._app.send_task(
                task,
                kwargs=arguments,
                queue=route.queue,
                expires=route.expires,
                headers=headers,
                retry=False,
            )
        except (OperationalError, RedisError, OSError) as error:
            raise TaskQueueUnavailable(f"task queue unavailable: {error}") from error

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._app.close()


def broker_url(redis_url: str) -> str:
    """Returns the URL of the same Redis as Celery spells it: a Unix socket is `redis+socket://`, and the
    database `virtual_host`.
    """
    parts = urlsplit(redis_url)
    if parts.scheme != "unix":
        return redis_url
    database = parse_qs(parts.query).get("db", ["0"])[0]
    return f"redis+socket://{parts.path}?virtual_host={database}"
