"""Constructs the payment services from settings.

Stripe's SDK takes a second to import, so it is only imported if there is a key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import redis.asyncio

from billing.invoices.accounts import BillingAccounts
from billing.payments.service import PaymentService
from billing.payments.settings import StripeSettings
from billing.payments.webhooks import WebhookReceiver
from db.outbox import Outbox
from db.session import Database


@asynccontextmanager
async def open_payments(
    database: Database, cache: redis.asyncio.Redis, outbox: Outbox, settings: StripeSettings
) -> AsyncIterator[PaymentService]:
    """Yields the payment service; without a key, one that offers invoices only."""
    accounts = BillingAccounts(database, cache)
    if not settings.enabled:
        yield PaymentService(database, None, return_url=settings.return_url, accounts=accounts)
        return
    from billing.stripe_gateway import StripeGateway

    webhooks = WebhookReceiver(database, outbox, settings) if settings.webhook_secret else None
    gateway = StripeGateway(settings)
    try:
        yield PaymentService(
            database, gateway, return_url=settings.return_url, accounts=accounts, webhooks=webhooks
        )
    finally:
        await gateway.close()
