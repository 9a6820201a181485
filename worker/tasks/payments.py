"""Runs the payment rounds: meter events, dunning and webhooks, each in a background thread.

The provider may be slow. Without a payment provider the tasks do nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import redis.asyncio
import structlog
from celery import Celery
from redis.exceptions import RedisError

from billing.payments.rounds import PaymentRounds
from billing.payments.settings import StripeSettings
from billing.payments.webhooks import FOLLOW_UP
from db.errors import DatabaseUnavailable
from db.session import Database
from worker.app import LOOK_AT_PAYMENTS, SEND_METER_EVENTS, SWEEP_WEBHOOKS
from worker.background_thread import BackgroundThread
from worker.runtime import Runtime

log = structlog.get_logger(__name__)

Round = Callable[[PaymentRounds], Awaitable[None]]


def register(app: Celery, runtime: Runtime) -> None:
    settings = StripeSettings()
    metering, checking, handling = (
        BackgroundThread("metering to the provider"),
        BackgroundThread("looking at payments"),
        BackgroundThread("following webhooks up"),
    )

    def begin(thread: BackgroundThread, one: Round) -> None:
        if settings.enabled:
            thread.start(lambda: _run(runtime, settings, one))

    @app.task(name=SEND_METER_EVENTS, time_limit=300)
    def send_meter_events() -> None:
        """Sends what is due. What fails waits for its next attempt."""
        begin(metering, lambda rounds: rounds.meter(datetime.now(UTC)))

    @app.task(name=LOOK_AT_PAYMENTS, time_limit=300)
    def look_at_payments() -> None:
        begin(checking, lambda rounds: rounds.check_payments(datetime.now(UTC)))

    @app.task(name=FOLLOW_UP, time_limit=300)
    def follow_up_webhook(event_id: str) -> None:
        """Handles the event, and all others that are due."""
        begin(handling, lambda rounds: rounds.follow_up())

    @app.task(name=SWEEP_WEBHOOKS, time_limit=300)
    def sweep_webhooks() -> None:
        """Handles events that were not handled yet, or failed."""
        begin(handling, lambda rounds: rounds.follow_up())


async def _run(runtime: Runtime, settings: StripeSettings, one: Round) -> None:
    try:
        async with _opened(runtime, settings) as rounds:
            await one(rounds)
    except (DatabaseUnavailable, RedisError) as error:
        log.warning("payments are continued by the next round", error=str(error))


@asynccontextmanager
async def _opened(runtime: Runtime, settings: StripeSettings) -> AsyncIterator[PaymentRounds]:
    from billing.stripe_gateway import StripeGateway  # takes a second to import

    database = Database(runtime.database_url, pool_size=1, pool_overflow=9)
    cache = redis.asyncio.Redis.from_url(runtime.settings.redis_url)
    gateway = StripeGateway(settings)
    try:
        yield PaymentRounds(database, cache, gateway, settings)
    finally:
        await gateway.close()
        await cache.aclose()
        await database.close()
