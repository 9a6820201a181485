"""Runs the reconciliation of all books at night and on request, in the queue of jobs.

Metering must not wait for it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

import structlog
from celery import Celery
from redis.exceptions import RedisError

from billing.payments.settings import StripeSettings
from billing.reconciliation.comparing import compare
from billing.reconciliation.differences import Report
from billing.reconciliation.service import ReconciliationService
from billing.stripe_gateway import StripeGateway
from db.errors import DatabaseUnavailable
from db.tasks import RECONCILE, RECONCILE_NOW
from worker.runtime import Runtime

log = structlog.get_logger(__name__)


def register(app: Celery, runtime: Runtime) -> None:
    @app.task(name=RECONCILE, time_limit=3000)
    def reconcile() -> None:
        """Runs once a night. If the result cannot be stored, the next call runs it again."""
        try:
            report = runtime.run(_reconcile(runtime))
        except (DatabaseUnavailable, RedisError) as error:
            log.warning("reconciliation is postponed to the next round", error=str(error))
        else:
            if report is not None:
                log.info("books compared", report_id=report.id, differences=report.num_differences)

    @app.task(name=RECONCILE_NOW, time_limit=3000)
    def reconcile_now(ticket: str, start: str, end: str) -> None:
        """Runs a reconciliation that an operator asked for."""
        span = (datetime.fromisoformat(start), datetime.fromisoformat(end))
        report = runtime.run(_compare(runtime, ticket, *span))
        if report is not None:
            log.info("books compared", report_id=report.id, differences=report.num_differences)


async def _compare(runtime: Runtime, ticket: str, start: datetime, end: datetime) -> Report | None:
    async with _provider() as gateway:
        return await compare(
            runtime.database, runtime.redis, gateway, ticket, start, end, runtime.engine_endpoints
        )


async def _reconcile(runtime: Runtime) -> Report | None:
    async with _provider() as gateway:
        service = ReconciliationService(
            runtime.database, runtime.redis, gateway, engines=runtime.engine_endpoints
        )
        return await service.reconcile_if_due()


@asynccontextmanager
async def _provider() -> AsyncIterator[StripeGateway | None]:
    settings = StripeSettings()
    if not settings.enabled:
        yield None
        return
    gateway = StripeGateway(settings)
    try:
        yield gateway
    finally:
        await gateway.close()
