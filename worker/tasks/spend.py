"""Reports unreserved costs to budgets, raises spend alerts, and delivers notifications."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import structlog
from celery import Celery
from redis.exceptions import RedisError

from adapters.repository import AdapterDirectory
from billing.notifications.delivering import Deliveries
from billing.notifications.events import ADAPTER_READY
from billing.notifications.publishing import publish
from billing.notifications.repository import DueDeliveries
from billing.notifications.sending import WebhookSender
from billing.notifications.settings import NotificationSettings
from billing.spend.adjusting import SpendAdjusting
from billing.spend.alerts import SpendWatch
from billing.window_usage import WindowUsage
from db.errors import DatabaseUnavailable
from db.session import EVERY_TENANT, Database
from tenants.quotas.unreserved_spend import UnreservedSpend
from worker.app import DELIVER_NOTIFICATIONS, WATCH_SPEND
from worker.runtime import Runtime

log = structlog.get_logger(__name__)

READY_LATELY = timedelta(days=1)
"""How long after a version became ready tenants are notified of it, if it was not possible before."""
MADE_LATELY, LONG_LOOK_MINUTE = timedelta(hours=3), 25
"""How far back unreported costs are searched; in that minute of an hour, all are."""
ROUNDS = 20
"""Batches that are delivered in one task."""


def register(app: Celery, runtime: Runtime) -> None:
    @app.task(name=WATCH_SPEND, time_limit=300)
    def watch_spend() -> None:
        """Checks spend. What fails is done the next time."""
        try:
            runtime.run(_watch(runtime))
        except (DatabaseUnavailable, RedisError) as error:
            log.warning("spend is checked by the next run", error=str(error))

    @app.task(name=DELIVER_NOTIFICATIONS, time_limit=300)
    def deliver_notifications() -> None:
        """Starts to deliver what is due, in the background."""
        try:
            due = runtime.run(_any_due(runtime))
        except DatabaseUnavailable as error:
            log.warning("notifications are delivered by the next run", error=str(error))
        else:
            if due:
                runtime.delivering.start(lambda: deliver(runtime.database_url, runtime.notifications))


async def deliver(database_url: str, settings: NotificationSettings) -> int:
    """Delivers all that is due, on connections of its own; returns the number of attempts."""
    database = Database(database_url, pool_size=1, pool_overflow=1)
    try:
        deliveries = deliveries_of(database, settings)
        tried = 0
        for _ in range(ROUNDS):
            batch = await deliveries.deliver()
            tried += batch
            if not batch:
                break
        return tried
    except DatabaseUnavailable as error:
        log.warning("notifications are delivered by the next run", error=str(error))
        return 0
    finally:
        await database.close()


def deliveries_of(database: Database, settings: NotificationSettings) -> Deliveries:
    webhooks = WebhookSender(
        http_allowed=settings.webhooks_http,
        private_allowed=settings.webhooks_private,
        timeout=settings.timeout,
    )
    return Deliveries(database, webhooks, settings.mailer())


async def _any_due(runtime: Runtime) -> bool:
    async with runtime.database.read(EVERY_TENANT) as session:
        return await DueDeliveries(session).any(datetime.now(UTC))


async def _watch(runtime: Runtime) -> None:
    now, usage = datetime.now(UTC), WindowUsage(runtime.database)
    await _publish_ready_adapters(runtime.database, now)
    num_reported = await SpendAdjusting(runtime.database, UnreservedSpend(runtime.redis, usage)).report(
        now, lately=None if now.minute == LONG_LOOK_MINUTE else MADE_LATELY
    )
    raised = await SpendWatch(runtime.database, usage).raise_due(now)
    if num_reported or raised:
        log.info("spend is checked", costs_reported=num_reported, alerts_raised=raised)


async def _publish_ready_adapters(database: Database, now: datetime) -> None:
    async with database.read(EVERY_TENANT) as session:
        ready = await AdapterDirectory(session).ready_since(now - READY_LATELY)
        keys = {f"{ADAPTER_READY}:{row.id}@{version.version}": (row, version) for row, version in ready}
        known = await DueDeliveries(session).known(list(keys))
    for key, (adapter, version) in keys.items():
        if key in known:
            continue
        facts = {
            "adapter_id": adapter.id,
            "name": adapter.name,
            "version": version.version,
            "model": f"{adapter.base}:{adapter.name}@{version.version}",
        }
        async with database.write(adapter.tenant_id) as session:
            await publish(session, adapter.tenant_id, ADAPTER_READY, facts, key=key, now=now)
