"""Runs the workers' recurring payment tasks over one database and one payment gateway."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import redis.asyncio
import structlog

from billing.payments.customers import Customers
from billing.payments.documents import DocumentSending
from billing.payments.dunning import Dunning
from billing.payments.errors import ProviderRefused, ProviderUnavailable
from billing.payments.gateway import PaymentGateway
from billing.payments.matching import match_payments
from billing.payments.planning import EPOCH, MeterPlanning
from billing.payments.sending import Sending
from billing.payments.settings import StripeSettings
from billing.payments.webhooks import FollowUps
from db.session import Database

log = structlog.get_logger(__name__)

SHORT_LOOK = timedelta(days=3)
"""How far back hours are compared every minute; all hours are compared once an hour."""
LONG_LOOK_MINUTE = 20


class PaymentRounds:
    """The payment tasks of one worker. Each may be interrupted anywhere, and several workers may run them."""

    def __init__(
        self,
        database: Database,
        redis_client: redis.asyncio.Redis,
        gateway: PaymentGateway,
        settings: StripeSettings,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._database = database
        self._gateway = gateway
        self.customers = Customers(database, gateway)
        self.planning = MeterPlanning(database)
        self.sending = Sending(database, gateway, per_second=settings.events_per_second, clock=clock)
        grace = timedelta(days=settings.grace_days)
        self.dunning = Dunning(database, redis_client, gateway, grace=grace)
        self.documents = DocumentSending(database, gateway, self.dunning, clock=clock)
        self.follow_ups = FollowUps(database, redis_client, gateway, self.dunning, clock=clock)

    async def meter(self, now: datetime) -> None:
        """Subscribes tenants, updates customer details, plans metered hours and sends what is due. Raises
        DatabaseUnavailable, RedisError.
        """
        try:
            await self.customers.subscribe_all(now)
            await self.customers.push_details()
        except (ProviderUnavailable, ProviderRefused) as error:
            log.warning("customers are not up to date at the provider", error=str(error))
        since = EPOCH if now.minute == LONG_LOOK_MINUTE else now - SHORT_LOOK
        await self.planning.plan(now, since=since)
        for what, sent in (
            ("meter events", await self.sending.send()),
            ("documents", await self.documents.send()),
        ):
            if sent.arrived or sent.manual:
                log.info("round of sending ended", what=what, arrived=sent.arrived, manual=sent.manual)

    async def check_payments(self, now: datetime) -> None:
        """Updates the dunning state of accounts in arrears and records payments on invoices; once an hour,
        reads the open invoices of every customer. Raises DatabaseUnavailable.
        """
        await match_payments(self._database, now)
        try:
            await self.dunning.refresh_overdue(now)
            if now.minute == LONG_LOOK_MINUTE:
                await self.follow_ups.forget_old()
                await self.dunning.refresh_all(now)
        except (ProviderUnavailable, ProviderRefused) as error:
            log.warning("dunning states are not updated", error=str(error))

    async def follow_up(self) -> None:
        """Handles all webhook events that are due. Raises DatabaseUnavailable."""
        while await self.follow_ups.sweep():
            pass
