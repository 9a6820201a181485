"""Lets tenants see their account, top up a balance, and open the payment provider's portal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from secrets import token_hex

from billing.invoices.accounts import BillingAccounts, BillingAccountView, account_of, checked_details
from billing.invoices.repository import AccountRepository
from billing.payments.customers import Customers
from billing.payments.errors import PaymentsNotConfigured
from billing.payments.gateway import PaymentGateway
from billing.payments.models import ProviderInvoice, Subscription
from billing.payments.repository import PaymentRecords
from billing.payments.webhooks import PURPOSE, TOP_UP, WebhookReceiver
from db.session import Database
from tenants.actors import Actor
from tenants.audit.service import AuditLog

LEAST_TOP_UP, MOST_TOP_UP = 500, 1_000_000
"""The smallest and largest top-up in cents."""


@dataclass(frozen=True, slots=True)
class AccountView:
    """A tenant's account, subscription and unpaid invoices."""

    account: BillingAccountView
    subscription: Subscription | None
    owed: list[ProviderInvoice]
    live: bool | None
    """Whether real money moves; None without a payment provider."""

    @property
    def grace_until(self) -> datetime | None:
        return self.account.grace_until


@dataclass(frozen=True, slots=True)
class Checkout:
    id: str
    url: str
    cents: int


class PaymentService:
    """Serves the payments of all tenants. Without a gateway there are invoices only."""

    def __init__(
        self,
        database: Database,
        gateway: PaymentGateway | None,
        *,
        return_url: str,
        accounts: BillingAccounts | None = None,
        webhooks: WebhookReceiver | None = None,
    ) -> None:
        """`accounts` changes billing accounts; None in a process that changes none."""
        self._database = database
        self._gateway = gateway
        self._return_url = return_url
        self._accounts = accounts
        self.webhooks = webhooks
        """None if no webhooks are received."""

    @property
    def live(self) -> bool | None:
        """Whether real money moves; None without a payment provider."""
        return None if self._gateway is None else self._gateway.live

    async def view(self, tenant_id: str) -> AccountView:
        """Returns the tenant's account. Raises DatabaseUnavailable."""
        async with self._database.read(tenant_id) as session:
            account = account_of(tenant_id, await AccountRepository(session, tenant_id).find())
            records = PaymentRecords(session)
            subscription = await records.subscription(tenant_id)
            owed = await records.owed_invoices(tenant_id)
        return AccountView(account, subscription, owed, self.live)

    async def change(
        self,
        tenant_id: str,
        actor: Actor,
        details: Mapping[str, str],
        mode: str | None,
        *,
        now: datetime,
        confirmed: bool = False,
    ) -> None:
        """Changes the billing details, or switches between prepaid and postpaid, from now on. `confirmed`
        allows prepaid with an empty balance.

        Raises ValueError naming the field, BalanceEmpty, ModeNotAllowed, DatabaseUnavailable.
        """
        assert self._accounts is not None
        checked_details(details)  # before the mode changes: everything or nothing
        if mode is not None:
            await self._accounts.set_mode(
                tenant_id,
                mode,  # type: ignore[arg-type]
                actor,
                now=now,
                by_tenant=True,
                confirmed=confirmed,
            )
        if details:
            await self._accounts.set_details(tenant_id, actor, details)

    async def portal(self, tenant_id: str, actor: Actor) -> str:
        """Returns the address of a page for cards and open invoices, valid for minutes. Raises PaymentError,
        DatabaseUnavailable.
        """
        gateway = self._needed()
        customer = await Customers(self._database, gateway).ensure(tenant_id)
        url = await gateway.portal(customer, self._return_url)
        async with self._database.write(tenant_id) as session:
            target = ("billing_account", tenant_id)
            await AuditLog.record(session, tenant_id, actor, "billing_portal.opened", target)
        return url

    async def top_up(self, tenant_id: str, cents: int, actor: Actor) -> Checkout:
        """Creates a payment page for an amount; it is credited once the provider reports the payment. Raises
        ValueError naming the field, PaymentError, DatabaseUnavailable.
        """
        if not LEAST_TOP_UP <= cents <= MOST_TOP_UP:
            raise ValueError(f"amount must be from {LEAST_TOP_UP} to {MOST_TOP_UP} cents, not {cents}")
        gateway = self._needed()
        customer = await Customers(self._database, gateway).ensure(tenant_id)
        metadata = {"tenant_id": tenant_id, PURPOSE: TOP_UP}
        key = f"top_up:{token_hex(16)}"
        session_id, url = await gateway.checkout(customer, cents, metadata, self._return_url, key)
        async with self._database.write(tenant_id) as session:
            target, details = ("checkout_session", session_id), {"amount_cents": cents}
            await AuditLog.record(session, tenant_id, actor, "top_up.started", target, details)
        return Checkout(session_id, url, cents)

    def _needed(self) -> PaymentGateway:
        if self._gateway is None:
            raise PaymentsNotConfigured
        return self._gateway
