"""Moves accounts between active, grace and suspended as their invoices are paid or not, and tells their keys.

The state is computed from the provider's open invoices and the time, never from the order of webhooks: since
a payment failed, the account is in grace for some days, then suspended; once it is paid, active.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import redis.asyncio
import structlog

from billing.notifications.events import (
    ACCOUNT_GRACE,
    ACCOUNT_RESTORED,
    ACCOUNT_SUSPENDED,
    PAYMENT_FAILED,
)
from billing.notifications.publishing import publish
from billing.payments.gateway import InvoiceView, PaymentGateway
from billing.payments.repository import PaymentRecords
from billing.rates import MICRO_USD_PER_CENT
from db.session import EVERY_TENANT, Database, WriteSession
from tenants.actors import SYSTEM
from tenants.audit.service import AuditLog
from tenants.repository import KeyRepository
from tenants.resolver import publish_key_changes

log = structlog.get_logger(__name__)


State = Literal["active", "grace", "suspended"]


@dataclass(frozen=True, slots=True)
class DunningState:
    state: State
    grace_until: datetime | None = None


def dunning_state(failing_since: datetime | None, grace: timedelta, now: datetime) -> DunningState:
    """Returns the state of an account whose oldest unpaid payment failed then; None means nothing is owed."""
    if failing_since is None:
        return DunningState("active")
    until = failing_since + grace
    return DunningState("grace", until) if now < until else DunningState("suspended")


class Dunning:
    """Keeps the dunning state of all accounts."""

    def __init__(
        self,
        database: Database,
        redis_client: redis.asyncio.Redis,
        gateway: PaymentGateway,
        *,
        grace: timedelta,
    ) -> None:
        self._database = database
        self._redis = redis_client
        self._gateway = gateway
        self._grace = grace

    async def record(self, seen: InvoiceView, now: datetime) -> State | None:
        """Records the invoice as the provider has it, and returns the account's new state; None if the
        invoice belongs to no tenant.
        """
        async with self._database.write(EVERY_TENANT) as session:
            return await self.record_within(session, seen, now)

    async def record_within(self, session: WriteSession, seen: InvoiceView, now: datetime) -> State | None:
        """Does the same within the caller's transaction."""
        records = PaymentRecords(session)
        tenant_id = await records.tenant_of(seen.customer_id)
        if tenant_id is None:
            return None
        await records.account(tenant_id)  # locked, so that two invoices of a tenant are recorded in turn
        await records.keep_invoice(tenant_id, seen, now)
        if seen.failed:
            facts = {"invoice_id": seen.id, "amount_micro_usd": seen.amount_remaining * MICRO_USD_PER_CENT}
            key = f"failed:{seen.id}:{seen.attempt_count}"
            await publish(session, tenant_id, PAYMENT_FAILED, facts, key=key, now=now)
        return await self._update_state(session, tenant_id, now)

    async def refresh_overdue(self, now: datetime) -> int:
        """Reads the invoices of all accounts in arrears from the provider and updates their state; returns
        how many accounts. An account is suspended only after the provider was asked again, since a webhook
        may be late. Raises DatabaseUnavailable, ProviderUnavailable.
        """
        async with self._database.read(EVERY_TENANT) as session:
            owing = await PaymentRecords(session).owing()
        for tenant_id, _ in owing:
            async with self._database.read(EVERY_TENANT) as session:
                owed = await PaymentRecords(session).owed_invoices(tenant_id)
            seen = [await self._gateway.invoice(invoice.id) for invoice in owed]
            async with self._database.write(EVERY_TENANT) as session:
                records = PaymentRecords(session)
                await records.account(tenant_id)
                for one in seen:
                    await records.keep_invoice(tenant_id, one, now)
                await self._update_state(session, tenant_id, now)
        return len(owing)

    async def refresh_all(self, now: datetime) -> int:
        """Reads every customer's open invoices, in case a webhook was lost; returns how many failed."""
        async with self._database.read(EVERY_TENANT) as session:
            customers = await PaymentRecords(session).customers()
        failed = 0
        for customer in customers:
            for invoice in await self._gateway.open_invoices(customer):
                await self.record(invoice, now)
                failed += invoice.failed
        return failed

    async def _update_state(self, session: WriteSession, tenant_id: str, now: datetime) -> State:
        records = PaymentRecords(session)
        account = await records.account(tenant_id)
        since = await records.failing_since(tenant_id)
        current = dunning_state(since, self._grace, now)
        before = account.state
        if current.state == before:
            return current.state
        account.state, account.grace_until = current.state, current.grace_until
        tenant = await records.tenant(tenant_id)
        tenant.billing_state = current.state
        digests = await KeyRepository(session, tenant_id).digests()
        session.after_commit(lambda: publish_key_changes(self._redis, digests))
        await self._publish(session, tenant_id, current, before, since or now, now)
        details = {"from": before, "to": current.state}
        await AuditLog.record(
            session, tenant_id, SYSTEM, "billing_account.updated", ("billing_account", tenant_id), details
        )
        log.info("dunning state changed", tenant_id=tenant_id, before=before, after=current.state)
        return current.state

    async def _publish(
        self,
        session: WriteSession,
        tenant_id: str,
        current: DunningState,
        before: str,
        since: datetime,
        now: datetime,
    ) -> None:
        moment = since.isoformat()
        if current.state == "grace":
            assert current.grace_until is not None
            until = {"grace_until": int(current.grace_until.timestamp())}
            await publish(session, tenant_id, ACCOUNT_GRACE, until, key=f"grace:{moment}", now=now)
        elif current.state == "suspended":
            await publish(session, tenant_id, ACCOUNT_SUSPENDED, {}, key=f"suspended:{moment}", now=now)
        elif before == "suspended":
            await publish(
                session, tenant_id, ACCOUNT_RESTORED, {}, key=f"restored:{now.isoformat()}", now=now
            )
