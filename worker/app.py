"""The Celery app: its broker, its queue and its schedule. Tasks are in `worker.tasks`.

Tasks may run twice, because they are acknowledged late and Redis hands a task out again after
VISIBILITY_TIMEOUT: each is idempotent, and none may take that long.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

from celery import Celery
from kombu import Queue

from worker.settings import WorkerSettings

QUEUE = "rootstock"
VISIBILITY_TIMEOUT = 3600
"""Seconds a worker may sit on a task before Redis gives it to another as well."""

METER_JOURNAL = "billing.meter_journal"
MAKE_PARTITIONS = "billing.make_partitions"


def create_app(settings: WorkerSettings) -> Celery:
    """An app with the schedule and no tasks yet: whoever only sends needs none."""
    app = Celery("rootstock", broker=broker_url(settings.redis_url), set_as_current=False)
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_default_queue=QUEUE,
        task_queues=[Queue(QUEUE)],
        task_create_missing_queues=False,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_cancel_long_running_tasks_on_connection_loss=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "visibility_timeout": VISIBILITY_TIMEOUT,
            "socket_keepalive": True,
            "health_check_interval": 10,
        },
        timezone="UTC",
        beat_schedule=_schedule(settings),
    )
    return app


def _schedule(settings: WorkerSettings) -> dict[str, Any]:
    """What expires is dropped unrun: after a pause the queue holds one drain's worth, not one per second of
    the pause.
    """
    return {
        METER_JOURNAL: {
            "task": METER_JOURNAL,
            "schedule": settings.meter_interval,
            "options": {"expires": settings.meter_interval},
        },
        MAKE_PARTITIONS: {"task": MAKE_PARTITIONS, "schedule": 86_400.0, "options": {"expires": 3600.0}},
    }


def broker_url(redis_url: str) -> str:
    """The same Redis in Celery's words: it spells a Unix socket `redis+socket://`, and the database
    `virtual_host`.
    """
    parts = urlsplit(redis_url)
    if parts.scheme != "unix":
        return redis_url
    database = parse_qs(parts.query).get("db", ["0"])[0]
    return f"redis+socket://{parts.path}?virtual_host={database}"
