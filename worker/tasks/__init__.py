"""Celery tasks, a module for each domain. Each is idempotent, opens what it needs, and calls a service."""

from __future__ import annotations

from celery import Celery

from worker.runtime import Runtime
from worker.tasks import (
    books,
    capacity,
    invoices,
    jobs,
    metering,
    outbox,
    payments,
    quotas,
    refusals,
    request_metadata,
    retention,
    signatures,
    sla,
    spend,
    status,
    storage,
)


def register(app: Celery, runtime: Runtime) -> None:
    """Adds all tasks to `app`, to run on `runtime`."""
    for domain in (
        *(metering, sla, refusals, outbox, jobs, quotas, storage, spend, invoices, books, payments),
        retention,
        request_metadata,
        signatures,
        status,
        capacity,
    ):
        domain.register(app, runtime)
