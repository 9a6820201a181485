"""The worker raises alerts and delivers what tenants are told, and meters on while endpoints let it wait."""

from __future__ import annotations

import time
from pathlib import Path

import redis.asyncio
from sqlalchemy import text

from billing.notifications.events import ADAPTER_READY, SPEND_ALERT
from billing.notifications.publishing import publish
from billing.notifications.sending import WebhookSender
from billing.notifications.service import WebhookService
from billing.rates import RATE_LABEL, Rate
from billing.spend.alerts import SpendAlertService, Threshold
from db.session import EVERY_TENANT, Database
from tenants.actors import OPERATOR
from tenants.service import account_services
from tests.support.hook_server import hook_server
from tests.support.journal import usage_event, write_events
from tests.support.waiting import eventually
from tests.support.workers import start_worker
from tests.tenants.conftest import SECRET

ENVIRONMENT = {
    "ROOTSTOCK_NOTIFY_WEBHOOKS_HTTP": "true",
    "ROOTSTOCK_NOTIFY_WEBHOOKS_PRIVATE": "true",
    "ROOTSTOCK_NOTIFY_TIMEOUT": "60",
}


async def test_alerts_arrive_and_nobody_waits_for_an_endpoint(
    database: Database, database_url: str, redis_url: str, redis_client: redis.asyncio.Redis, tmp_path: Path
) -> None:
    accounts = account_services(database, redis_client, SECRET)
    tenant = await accounts.tenants.create_tenant("acme")
    webhooks = WebhookService(database, WebhookSender(http_allowed=True))
    labels = {"key_id": "k", "model": "sapling", RATE_LABEL: Rate("p", 0, 0, 1_000_000).label}

    def use(name: str) -> None:
        now = time.time()
        ended = usage_event(
            name,
            0,
            5,
            tenant=tenant.id,
            submitted_at=now,
            recorded_at=now,
            labels=labels,
            finish_reason="stop",
        )
        write_events(redis_url, [ended])

    async def in_ledger(name: str) -> bool:
        async with database.read(EVERY_TENANT) as session:
            query = text("SELECT count(*) FROM usage_records WHERE request_id = :name")
            return bool((await session.execute(query, {"name": name})).scalar_one())

    async with hook_server() as hooks:
        for path, event in (("/204", SPEND_ALERT), ("/slow", ADAPTER_READY)):
            await webhooks.create(tenant.id, OPERATOR, name="x", url=hooks.url(path), event_types=[event])
        await SpendAlertService(database).create(tenant.id, None, OPERATOR, Threshold(5, None))
        use("first")
        log = tmp_path / "log"
        process = start_worker(database_url, redis_url, log, environment=ENVIRONMENT, spend_interval="0.5")
        try:
            await eventually(lambda: in_ledger("first"), 60)
            await eventually(lambda: any(heard.path == "/204" for heard in hooks.heard), 60)
            async with database.write(tenant.id) as session:
                await publish(session, tenant.id, ADAPTER_READY, {}, key="x")
            await eventually(lambda: any(heard.path == "/slow" for heard in hooks.heard), 60)
            use("second")
            await eventually(lambda: in_ledger("second"), 60)
            assert [heard.path for heard in hooks.heard] == ["/204", "/slow"], "still unanswered"
        finally:
            process.kill()
            process.wait()
    assert "Traceback" not in log.read_text()
