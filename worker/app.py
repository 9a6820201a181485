"""Builds the Celery app: its broker, queues and schedule. Tasks are in `worker.tasks`.

Tasks may run twice, because they are acknowledged late and Redis delivers a task again after
VISIBILITY_TIMEOUT. So each is idempotent, and what takes longer holds a lease in the database.
"""

from __future__ import annotations

from typing import Any

from celery import Celery
from kombu import Queue

from db.tasks import (
    CHECK_SIGNATURES,
    CLOSE_MONTHS,
    JOBS_QUEUE,
    PURGE_DELETED,
    QUEUE,
    QUEUES,
    RECONCILE,
    ROUTES,
    RUN_JOB_EXPIRES,
    SETTLE_DELETIONS,
    SETTLE_UPLOADS,
    SIGN_VERSIONS,
    SWEEP_STORAGE,
    Route,
    broker_url,
)
from worker.settings import WorkerSettings

VISIBILITY_TIMEOUT = 3600
"""Seconds a worker may take for a task before Redis delivers it to another as well."""

METER_JOURNAL = "billing.meter_journal"
MAKE_PARTITIONS = "billing.make_partitions"
MAKE_CHARGES = "billing.make_charges"
COUNT_SERVICE_LEVELS = "sla.count_service_levels"
TIDY_SERVICE_LEVELS = "sla.tidy_service_levels"
SAMPLE_STATUS = "sla.sample_status"
SAMPLE_CAPACITY = "sla.sample_capacity"
PLAN_CAPACITY = "sla.plan_capacity"
STORE_REFUSED_REQUESTS = "tenants.store_refused_requests"
TIDY_REFUSED_REQUESTS = "tenants.tidy_refused_requests"
STORE_REQUEST_METADATA = "billing.store_request_metadata"
TIDY_REQUEST_METADATA = "billing.tidy_request_metadata"
DELETE_EXPIRED = "retention.delete_expired"
APPLY_RETENTION = "retention.apply"
RELAY_OUTBOX = "db.relay_outbox"
PRUNE_OUTBOX = "db.prune_outbox"
SWEEP_JOBS = "adapters.sweep_jobs"
SWEEP_RESERVATIONS = "tenants.sweep_reservations"
WATCH_SPEND = "billing.watch_spend"
DELIVER_NOTIFICATIONS = "billing.deliver_notifications"
SEND_METER_EVENTS = "billing.send_meter_events"
LOOK_AT_PAYMENTS = "billing.look_at_payments"
SWEEP_WEBHOOKS = "billing.sweep_webhooks"

HOUR = 3600.0


def create_app(settings: WorkerSettings) -> Celery:
    """Returns an app with the schedule and no tasks yet."""
    app = Celery("rootstock", broker=broker_url(settings.redis_url), set_as_current=False)
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_default_queue=QUEUE,
        task_queues=[Queue(name) for name in QUEUES],
        task_create_missing_queues=False,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        # A job goes on when the connection to Redis breaks: its lease is in the database, and a message
        # delivered again meanwhile finds the lease held. Short tasks start again.
        worker_cancel_long_running_tasks_on_connection_loss=JOBS_QUEUE not in settings.queue_names,
        worker_proc_alive_timeout=60.0,
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
    """Expired tasks are dropped unrun: after a pause the queue holds one drain, not one per second of the
    pause.
    """
    intervals = {
        METER_JOURNAL: settings.meter_interval,
        MAKE_PARTITIONS: 24 * HOUR,
        MAKE_CHARGES: 60.0,
        CLOSE_MONTHS: HOUR,
        RECONCILE: 600.0,
        COUNT_SERVICE_LEVELS: 5.0,
        TIDY_SERVICE_LEVELS: 24 * HOUR,
        SAMPLE_STATUS: 60.0,
        SAMPLE_CAPACITY: 300.0,
        PLAN_CAPACITY: 1800.0,
        STORE_REFUSED_REQUESTS: 2.0,
        TIDY_REFUSED_REQUESTS: 6 * HOUR,
        STORE_REQUEST_METADATA: 2.0,
        TIDY_REQUEST_METADATA: 60.0,
        DELETE_EXPIRED: 60.0,
        APPLY_RETENTION: 600.0,
        SETTLE_DELETIONS: 60.0,
        RELAY_OUTBOX: settings.relay_interval,
        PRUNE_OUTBOX: HOUR,
        SWEEP_JOBS: settings.sweep_interval,
        SWEEP_STORAGE: HOUR,
        PURGE_DELETED: 60.0,
        SETTLE_UPLOADS: 30.0,
        SIGN_VERSIONS: 60.0,
        CHECK_SIGNATURES: 600.0,
        SWEEP_RESERVATIONS: 20.0,
        WATCH_SPEND: settings.spend_interval,
        DELIVER_NOTIFICATIONS: 3.0,
        SEND_METER_EVENTS: 60.0,
        LOOK_AT_PAYMENTS: 60.0,
        SWEEP_WEBHOOKS: 5.0,
    }
    return {
        task: {
            "task": task,
            "schedule": interval,
            "options": {"expires": _good_for(task, interval), "queue": _queue(task)},
        }
        for task, interval in intervals.items()
    }


def _good_for(task: str, interval: float) -> float:
    """Returns the seconds until a task expires. In the queue of jobs that is at least as long as a job's own
    message: a task that expired earlier would never run while jobs wait.
    """
    return min(HOUR, max(interval, RUN_JOB_EXPIRES) if _queue(task) == JOBS_QUEUE else interval)


def _queue(task: str) -> str:
    return ROUTES.get(task, Route()).queue
