"""The worker subscribes tenants at the payment provider, meters what they used, and acts on webhooks."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import text

from billing.payments.settings import StripeSettings
from billing.payments.webhooks import WebhookReceiver
from db.session import EVERY_TENANT, Database
from examples.stripe_double import API_KEY, StripeDouble
from examples.stripe_double.deliveries import signed
from tests.billing.payments.usage import TENANT, make_tenant, use
from tests.support.waiting import eventually
from tests.support.workers import start_worker

SECRET = "whsec_test"


async def test_it_does_what_is_due_at_the_provider(
    database: Database, database_url: str, redis_url: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    now = datetime.now(UTC)
    earlier = now - timedelta(hours=2)
    await make_tenant(database)
    await use(database, earlier, 1_000_000)
    in_month = earlier.month == now.month  # the meter begins with the month of the subscription
    with StripeDouble().serving() as double:
        environment = {"ROOTSTOCK_STRIPE_API_KEY": API_KEY, "ROOTSTOCK_STRIPE_API_BASE": double.url}
        process = start_worker(database_url, redis_url, log, environment=environment)
        try:
            await eventually(lambda: bool(double.books.all("subscription")), 60)
            if in_month:
                await eventually(lambda: bool(double.meters.received), 60)
                assert double.meters.received[0]["value"] == 1_000_000
            await _top_up(database, double)

            async def credited() -> bool:
                async with database.read(EVERY_TENANT) as session:
                    found = await session.execute(text("SELECT amount FROM credits"))
                    return list(found.scalars()) == [25_000_000]

            await eventually(credited, 60)
        finally:
            process.kill()
            process.wait()
    assert "Traceback" not in log.read_text()


async def _top_up(database: Database, double: StripeDouble) -> None:
    """Paid at the provider, and told: by a process without a way to the workers, so the sweep finds it."""
    form = {
        "customer": double.books.all("customer")[0]["id"],
        "mode": "payment",
        "line_items": [{"quantity": "1", "price_data": {"unit_amount": "2500"}}],
        "metadata": {"tenant_id": TENANT, "purpose": "top_up"},
        "success_url": "https://us.example/",
    }
    with double.books.lock:
        session = double.routes.payments.create_checkout(form)
        double.routes.payments.pay_checkout(session["id"])
        body = json.dumps(double.books.events[-1]).encode()
    receiver = WebhookReceiver(database, None, StripeSettings(webhook_secret=SECRET))
    assert await receiver.receive(signed(body, SECRET), body)
