"""Closes months when they are over, and expires credits. In the queue of jobs."""

from __future__ import annotations

from datetime import UTC, datetime

import structlog
from celery import Celery
from redis.exceptions import RedisError

from billing.invoices.announcing import announce
from billing.invoices.closing import JournalAge, MonthClose
from billing.invoices.credits import CreditService
from billing.invoices.service import InvoiceService
from billing.invoices.settings import InvoiceSettings
from billing.payments.documents import queue_invoice
from billing.payments.settings import StripeSettings
from db.errors import DatabaseUnavailable
from db.tasks import CLOSE_MONTHS
from worker.runtime import Runtime

log = structlog.get_logger(__name__)


def register(app: Celery, runtime: Runtime) -> None:
    @app.task(name=CLOSE_MONTHS, time_limit=3000)
    def close_months() -> None:
        """Makes the invoices that are due. A failed run is continued by the next."""
        try:
            runtime.run(_close(runtime))
        except (DatabaseUnavailable, RedisError) as error:
            log.warning("months are closed by the next run", error=str(error))


async def _close(runtime: Runtime) -> None:
    now = datetime.now(UTC)
    stripe = StripeSettings()
    invoices = InvoiceService(
        runtime.database,
        runtime.redis,
        InvoiceSettings(),
        on_final=[announce, queue_invoice] if stripe.enabled else [announce],
        minimum_cents=stripe.smallest_charge,
    )
    await CreditService(runtime.database, runtime.redis).expire(now)
    closed = await MonthClose(runtime.database, invoices, JournalAge(runtime.redis)).close_due(now)
    if closed.waiting_for is not None:
        log.error(
            "month cannot be closed: the journal has an entry that is not in the ledger yet",
            entry_time=closed.waiting_for.isoformat(),
        )
