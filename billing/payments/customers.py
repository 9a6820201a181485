"""Creates a customer and a subscription at the payment provider for each tenant.

Before anything is created, the provider is searched for it, so a process that dies between creating and
recording creates no duplicate.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime

import structlog

from billing.months import month_of, span
from billing.payments.errors import ProviderRefused
from billing.payments.gateway import PaymentGateway
from billing.payments.models import Subscription
from billing.payments.repository import PaymentRecords
from db.session import EVERY_TENANT, Database

log = structlog.get_logger(__name__)


class Customers:
    """Creates and updates the customers of all tenants."""

    def __init__(self, database: Database, gateway: PaymentGateway) -> None:
        self._database = database
        self._gateway = gateway

    async def ensure(self, tenant_id: str) -> str:
        """Returns the tenant's customer id, created if missing. Raises PaymentError, DatabaseUnavailable."""
        async with self._database.write(EVERY_TENANT) as session:
            records = PaymentRecords(session)
            account, tenant = await records.account(tenant_id), await records.tenant(tenant_id)
        if account.stripe_customer_id is not None:
            return account.stripe_customer_id
        name, email = account.name or tenant.name, account.email
        customer = await self._gateway.find_customer(tenant_id)
        if customer is None:
            customer = await self._gateway.create_customer(tenant_id, name, email)
        async with self._database.write(EVERY_TENANT) as session:
            account = await PaymentRecords(session).account(tenant_id)
            account.stripe_customer_id = account.stripe_customer_id or customer
            return account.stripe_customer_id

    async def subscribe(self, tenant_id: str, now: datetime) -> Subscription:
        """Meters the tenant from this month on. Its months end as ours do, at 00:00 UTC of the first.

        Raises PaymentError, DatabaseUnavailable.
        """
        customer = await self.ensure(tenant_id)
        catalogue = await self._gateway.catalogue()
        found = await self._gateway.find_subscription(customer)
        if found is not None and found.price_id != catalogue.price_id:
            # Created by an older release, when the meter collected the money.
            await self._gateway.cancel_subscription(found.id)
            found = None
        month, anchor = span(month_of(now))
        if found is None:
            key = f"subscription:{customer}:{now:%Y-%m-%d}"
            found = await self._gateway.create_subscription(
                tenant_id, customer, catalogue.price_id, anchor, key
            )
        async with self._database.write(EVERY_TENANT) as session:
            records = PaymentRecords(session)
            account = await records.account(tenant_id)
            known = await records.subscription(tenant_id)
            if known is not None and known.id == found.id:
                account.stripe_subscription_id = found.id
                return known
            made = Subscription(
                id=found.id,
                tenant_id=tenant_id,
                customer_id=customer,
                status=found.status,
                metered_from=month,
                started_at=now,
            )
            session.add(made)
            account.stripe_subscription_id = found.id
        log.info("tenant is metered", tenant_id=tenant_id, subscription_id=found.id)
        return made

    async def subscribe_all(self, now: datetime, *, limit: int = 100) -> int:
        """Subscribes postpaid tenants without a subscription; returns how many. If the provider refuses one,
        for its address for example, the others go on. Raises ProviderUnavailable, DatabaseUnavailable.
        """
        async with self._database.read(EVERY_TENANT) as session:
            waiting = await PaymentRecords(session).unsubscribed(limit)
        done = 0
        for tenant_id in waiting:
            try:
                await self.subscribe(tenant_id, now)
                done += 1
            except ProviderRefused as error:
                log.error("tenant cannot be subscribed", tenant_id=tenant_id, error=str(error))
        return done

    async def push_details(self, *, limit: int = 100) -> int:
        """Updates the provider's customers to the details on our invoices; returns how many had changed.

        A refusal is recorded on the account and retried when the details change. Raises
        ProviderUnavailable, DatabaseUnavailable.
        """
        async with self._database.read(EVERY_TENANT) as session:
            changed = await PaymentRecords(session).changed_details(limit)
        for tenant_id, customer, details in changed:
            error = ""
            try:
                await self._gateway.update_customer(customer, details)
            except ProviderRefused as refused:
                error = str(refused)
                log.error("provider refused billing details", tenant_id=tenant_id, error=error)
            async with self._database.write(EVERY_TENANT) as session:
                account = await PaymentRecords(session).account(tenant_id)
                account.provider_details, account.provider_error = asdict(details), error
        return len(changed)
