"""Sending tasks to the workers: queues, which task goes into which, the broker's address in Celery's words.

Owns the sending half of the task queue, for processes that run no tasks themselves. Refuses to know what a
task does: its name and its arguments are all that senders and workers share.
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

QUEUE = "rootstock"
"""Short tasks: metering, sweeping, passing on."""
JOBS_QUEUE = "rootstock.jobs"
"""Jobs that take seconds to minutes, so that nothing short ever waits behind one."""
QUEUES = (QUEUE, JOBS_QUEUE)

SWEEP_STORAGE = "adapters.sweep_storage"
PURGE_DELETED = "adapters.purge_deleted"
SETTLE_UPLOADS = "adapters.settle_uploads"
CLOSE_MONTHS = "billing.close_months"
RECONCILE = "billing.reconcile"
RECONCILE_NOW = "billing.reconcile_now"
RUN_JOB = "adapters.run_job"
RUN_JOB_EXPIRES = 120.0
"""Seconds after which a message that nobody took is dropped unrun. Whoever waits for the job sends another by
then, so of one job there is about one message at a time."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where a task's messages go, and how long they are good for."""

    queue: str = QUEUE
    expires: float | None = None


ROUTES: dict[str, Route] = {
    RUN_JOB: Route(JOBS_QUEUE, RUN_JOB_EXPIRES),
    SWEEP_STORAGE: Route(JOBS_QUEUE),
    PURGE_DELETED: Route(JOBS_QUEUE),
    SETTLE_UPLOADS: Route(JOBS_QUEUE),
    CLOSE_MONTHS: Route(JOBS_QUEUE),  # takes as long as there are tenants, and metering must not wait
    RECONCILE: Route(JOBS_QUEUE),
    RECONCILE_NOW: Route(JOBS_QUEUE),
}
"""Tasks that do not go to `QUEUE` for good."""


class TaskQueueUnavailable(RuntimeError):
    """Redis did not take a message: the same call may succeed later."""


class TaskSender:
    """A process's way into the queues. Connects at the first send; `close` it at the end."""

    def __init__(self, redis_url: str, *, timeout: float = 2.0) -> None:
        """`timeout`: seconds to wait for Redis, for each of connecting and answering."""
        self._app = Celery("rootstock-sender", broker=broker_url(redis_url), set_as_current=False)
        self._app.conf.update(
            task_serializer="json",
            task_ignore_result=True,
            task_queues=[Queue(name) for name in QUEUES],
            task_create_missing_queues=False,
            broker_connection_timeout=timeout,
            # Not Celery's patience, which is a worker's: a sender that waits keeps somebody waiting.
            broker_transport_options={
                "max_retries": 0,
                "socket_timeout": timeout,
                "socket_connect_timeout": timeout,
                "socket_keepalive": True,
                "health_check_interval": 10,
            },
        )
        # The producer blocks. Its own threads: Redis hanging must not use up the process's common ones.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="task-sender")

    async def send(self, task: str, arguments: Mapping[str, Any]) -> None:
        """Put a task into its queue. Raises TaskQueueUnavailable, after which it may be there or not."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, self._send, task, dict(arguments))

    def _send(self, task: str, arguments: dict[str, Any]) -> None:
        route = ROUTES.get(task, Route())
        try:
            self._app.send_task(task, kwargs=arguments, queue=route.queue, expires=route.expires, retry=False)
        except (OperationalError, RedisError, OSError) as error:
            raise TaskQueueUnavailable(f"task queue unavailable: {error}") from error

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._app.close()


def broker_url(redis_url: str) -> str:
    """The same Redis in Celery's words: it spells a Unix socket `redis+socket://`, and the database
    `virtual_host`.
    """
    parts = urlsplit(redis_url)
    if parts.scheme != "unix":
        return redis_url
    database = parse_qs(parts.query).get("db", ["0"])[0]
    return f"redis+socket://{parts.path}?virtual_host={database}"
