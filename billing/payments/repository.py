"""Queries what is sent to the payment provider and what it sent, of all tenants, for the workers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import Row, Text, bindparam, delete, exists, func, literal, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from billing.invoices.models import BillingAccount, CreditNote, Invoice, InvoicePayment
from billing.payments.gateway import LEAST_CHARGE, CustomerDetails, InvoiceView
from billing.payments.models import (
    Document,
    MeterEvent,
    ProviderEvent,
    ProviderInvoice,
    Subscription,
)
from tenants.models import OPERATOR_TENANT, Tenant

S = TypeVar("S", MeterEvent, Document)

_RANKS = ("draft", "open", "uncollectible", "void", "paid")
"""The states of a provider's invoice, which only moves to the right."""


_OWED = (
    select(ProviderInvoice)
    .where(
        ProviderInvoice.tenant_id == bindparam("tenant_id", type_=Text),
        ProviderInvoice.status.in_(("open", "uncollectible")),
    )
    .order_by(ProviderInvoice.period_start)
)


class SendingQueue:
    """Queries the meter events and documents to be sent."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def due_events(self, now: datetime, limit: int) -> Sequence[Row[MeterEvent, str]]:
        """Returns each tenant's earliest pending event, if it is due, with the customer's id, and locks it.

        The tenant's next event waits until this one is settled, because two open events could not be told
        apart in a sum.
        """
        first = (
            select(MeterEvent.tenant_id, MeterEvent.hour, MeterEvent.number)
            .where(MeterEvent.state == "pending")
            .distinct(MeterEvent.tenant_id)
            .order_by(MeterEvent.tenant_id, MeterEvent.hour, MeterEvent.number)
            .subquery()
        )
        query = (
            select(MeterEvent, BillingAccount.stripe_customer_id)
            .join(
                first,
                (MeterEvent.tenant_id == first.c.tenant_id)
                & (MeterEvent.hour == first.c.hour)
                & (MeterEvent.number == first.c.number),
            )
            .join(BillingAccount, BillingAccount.tenant_id == MeterEvent.tenant_id)
            .where(
                MeterEvent.state == "pending",
                MeterEvent.next_attempt_at <= now,
                BillingAccount.stripe_customer_id.is_not(None),
            )
            .order_by(MeterEvent.next_attempt_at, MeterEvent.tenant_id)
            .limit(limit)
            .with_for_update(of=MeterEvent, skip_locked=True)
        )
        return (await self.session.execute(query)).all()  # type: ignore[return-value]

    async def due_documents(self, now: datetime, limit: int) -> Sequence[Document]:
        """Returns and locks due documents. Credit notes wait for their invoice."""
        invoice = aliased(Document)
        query = (
            select(Document)
            .join(invoice, invoice.id == Document.invoice_id)
            .where(
                Document.state == "pending",
                Document.next_attempt_at <= now,
                (Document.kind == "invoice") | (invoice.state == "sent"),
            )
            .order_by(Document.next_attempt_at, Document.id)
            .limit(limit)
            .with_for_update(of=Document, skip_locked=True)
        )
        return (await self.session.execute(query)).scalars().all()

    async def queue_notes(self, now: datetime) -> None:
        """Queues credit notes that change what is owed or was paid, on invoices that the provider has or will
        have. A note that was credited to the balance does not concern the provider.
        """
        queued = aliased(Document)
        notes = (
            select(
                CreditNote.id,
                CreditNote.tenant_id,
                literal("credit_note"),
                CreditNote.invoice_id,
                CreditNote.amount_cents,
                literal(now),
            )
            .join(Document, Document.id == CreditNote.invoice_id)
            .where(
                CreditNote.settlement.in_(("due", "refund")),
                Document.state != "waived",
                ~exists().where(queued.id == CreditNote.id),
            )
        )
        columns = ["id", "tenant_id", "kind", "invoice_id", "cents", "next_attempt_at"]
        await self.session.execute(insert(Document).from_select(columns, notes).on_conflict_do_nothing())

    async def started_at(self, tenant_id: str) -> datetime | None:
        """Returns when the tenant's latest subscription began."""
        query = select(func.max(Subscription.started_at)).where(Subscription.tenant_id == tenant_id)
        return (await self.session.execute(query)).scalar_one()

    async def was_metered_before(self, tenant_id: str, month: datetime) -> bool:
        """Returns whether the month began under a subscription that the tenant no longer has."""
        query = (
            select(Subscription.id)
            .join(BillingAccount, BillingAccount.tenant_id == Subscription.tenant_id)
            .where(
                Subscription.tenant_id == tenant_id,
                Subscription.metered_from <= month,
                Subscription.id.is_distinct_from(BillingAccount.stripe_subscription_id),
            )
        )
        return (await self.session.execute(query.limit(1))).first() is not None

    async def lock(self, model: type[S], key: Any) -> S:
        """Returns the row, locked."""
        found = await self.session.get(model, key, with_for_update=True)
        assert found is not None, "rows are never deleted"
        return found

    async def arrived(self, tenant_id: str, start: datetime) -> int:
        """Returns the sum of events known to have arrived with times in the hour from `start`."""
        query = select(func.coalesce(func.sum(MeterEvent.value), 0)).where(
            MeterEvent.tenant_id == tenant_id,
            MeterEvent.state == "sent",
            MeterEvent.timestamp >= start,
            MeterEvent.timestamp < start + timedelta(hours=1),
        )
        return int((await self.session.execute(query)).scalar_one())

    async def in_state(self, model: type[S], state: str, limit: int = 1000) -> list[S]:
        query = select(model).where(model.state == state).order_by(model.created_at).limit(limit)
        return list((await self.session.execute(query)).scalars())

    async def find_event(self, identifier: str) -> MeterEvent | None:
        query = select(MeterEvent).where(MeterEvent.identifier == identifier).with_for_update()
        return (await self.session.execute(query)).scalar_one_or_none()

    async def count(self, state: str) -> int:
        """Returns the number of events and documents together."""
        counts = [
            (
                await self.session.execute(
                    select(func.count()).select_from(model).where(model.state == state)
                )
            ).scalar_one()
            for model in (MeterEvent, Document)
        ]
        return sum(counts)

    async def metered(self, tenant_id: str, start: datetime, end: datetime) -> dict[datetime, int]:
        """Returns the sums that arrived, by the hour they were metered with."""
        hour = func.date_trunc("hour", MeterEvent.timestamp, "UTC")
        query = (
            select(hour, func.sum(MeterEvent.value))
            .where(
                MeterEvent.tenant_id == tenant_id,
                MeterEvent.state == "sent",
                MeterEvent.timestamp >= start,
                MeterEvent.timestamp < end,
            )
            .group_by(hour)
        )
        return {row[0]: int(row[1]) for row in await self.session.execute(query)}


class PaymentRecords:
    """Queries accounts, subscriptions, and the provider's invoices and events."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def account(self, tenant_id: str) -> BillingAccount:
        """Returns the tenant's account, created if missing, locked until the transaction ends."""
        await self.session.execute(
            insert(BillingAccount).values(tenant_id=tenant_id).on_conflict_do_nothing()
        )
        query = (
            select(BillingAccount)
            .where(BillingAccount.tenant_id == tenant_id)
            .with_for_update()
            .execution_options(populate_existing=True)
        )
        return (await self.session.execute(query)).scalar_one()

    async def tenant_of(self, customer_id: str) -> str | None:
        query = select(BillingAccount.tenant_id).where(BillingAccount.stripe_customer_id == customer_id)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def tenant(self, tenant_id: str) -> Tenant:
        return (
            await self.session.execute(
                select(Tenant).where(Tenant.id == tenant_id).with_for_update(key_share=True)
            )
        ).scalar_one()

    async def unsubscribed(self, limit: int) -> list[str]:
        """Returns postpaid tenants without a subscription, including those without an account."""
        query = (
            select(Tenant.id)
            .outerjoin(BillingAccount, BillingAccount.tenant_id == Tenant.id)
            .where(
                Tenant.id != OPERATOR_TENANT,
                Tenant.disabled_at.is_(None),
                func.coalesce(BillingAccount.mode, "postpaid") == "postpaid",
                BillingAccount.stripe_subscription_id.is_(None),
            )
            .order_by(Tenant.id)
            .limit(limit)
        )
        return list((await self.session.execute(query)).scalars())

    async def owing(self) -> list[tuple[str, str]]:
        """Returns tenants in grace or suspended, with their customers' ids."""
        query = select(BillingAccount.tenant_id, BillingAccount.stripe_customer_id).where(
            BillingAccount.state != "active", BillingAccount.stripe_customer_id.is_not(None)
        )
        return [(row[0], str(row[1])) for row in await self.session.execute(query)]

    async def customers(self) -> list[str]:
        """Returns the ids of all customers."""
        query = select(BillingAccount.stripe_customer_id).where(
            BillingAccount.stripe_customer_id.is_not(None)
        )
        return [
            str(one)
            for one in (await self.session.execute(query.order_by(BillingAccount.tenant_id))).scalars()
        ]

    async def subscription_by_id(self, subscription_id: str) -> Subscription | None:
        return await self.session.get(Subscription, subscription_id, with_for_update=True)

    async def subscription(self, tenant_id: str) -> Subscription | None:
        """Returns the tenant's latest subscription."""
        query = (
            select(Subscription)
            .where(Subscription.tenant_id == tenant_id)
            .order_by(Subscription.created_at.desc())
            .limit(1)
        )
        return (await self.session.execute(query)).scalar_one_or_none()

    async def changed_details(self, limit: int) -> list[tuple[str, str, CustomerDetails]]:
        """Returns customers whose details at the provider differ from our invoices: tenant, customer, and the
        current details.
        """
        account = BillingAccount
        names = ("email", "address", "country", "tax_id")
        name = func.coalesce(func.nullif(account.name, ""), Tenant.name)
        said = func.jsonb_build_object(
            "name", name, *(part for one in names for part in (one, getattr(account, one)))
        )
        query = (
            select(account, name)
            .join(Tenant, Tenant.id == account.tenant_id)
            .where(account.stripe_customer_id.is_not(None), account.provider_details.is_distinct_from(said))
            .order_by(account.tenant_id)
            .limit(limit)
        )
        return [
            (
                row.tenant_id,
                str(row.stripe_customer_id),
                CustomerDetails(called, *(getattr(row, one) for one in names)),
            )
            for row, called in await self.session.execute(query)
        ]

    # Invoices ----------------------------------------------------------------------------------------------

    async def keep_invoice(self, tenant_id: str, seen: InvoiceView, now: datetime) -> None:
        """Stores the invoice as read, unless a later state of it is stored: reads in any order have the same
        result.
        """
        stored = await self.session.get(ProviderInvoice, seen.id, with_for_update=True)
        if stored is None:
            row = ProviderInvoice(id=seen.id, tenant_id=tenant_id)
            self.session.add(row)
        elif _progress(seen.status, seen.attempt_count) < _progress(stored.status, stored.attempt_count):
            return
        else:
            row = stored
        row.status, row.attempt_count = seen.status, seen.attempt_count
        row.amount_due, row.amount_paid = seen.amount_due, seen.amount_paid
        row.amount_remaining, row.invoice_id = seen.amount_remaining, seen.invoice_id
        row.period_start, row.period_end = seen.period_start, seen.period_end
        if seen.failed and row.failing_since is None:
            row.failing_since = now
        await self.session.flush()

    async def failing_since(self, tenant_id: str) -> datetime | None:
        """Returns when the first of the payments still owed failed."""
        query = select(func.min(ProviderInvoice.failing_since)).where(
            ProviderInvoice.tenant_id == tenant_id,
            ProviderInvoice.status.in_(("open", "uncollectible")),
            ProviderInvoice.amount_remaining >= LEAST_CHARGE,
        )
        return (await self.session.execute(query)).scalar_one()

    async def unmatched(self, limit: int) -> list[tuple[ProviderInvoice, str]]:
        """Returns the provider's paid invoices with ours, where ours has no such payment."""
        paid = ProviderInvoice
        query = (
            select(paid, Invoice.id)
            .join(Invoice, (Invoice.tenant_id == paid.tenant_id) & (Invoice.id == paid.invoice_id))
            .outerjoin(
                InvoicePayment,
                (InvoicePayment.tenant_id == paid.tenant_id)
                & (InvoicePayment.kind == "payment")
                & (InvoicePayment.reference == paid.id),
            )
            .where(paid.status == "paid", paid.amount_paid > 0, InvoicePayment.id.is_(None))
            .order_by(paid.id)
            .limit(limit)
        )
        return [(row[0], row[1]) for row in await self.session.execute(query)]

    async def owed_invoices(self, tenant_id: str) -> list[ProviderInvoice]:
        return list((await self.session.execute(_OWED, {"tenant_id": tenant_id})).scalars())

    # Events ------------------------------------------------------------------------------------------------

    async def add_event(self, event: dict[str, Any]) -> bool:
        """Stores a webhook event; returns whether it is new."""
        added = insert(ProviderEvent).values(**event).on_conflict_do_nothing().returning(ProviderEvent.id)
        return (await self.session.execute(added)).scalar_one_or_none() is not None

    async def lock_event(self, event_id: str) -> ProviderEvent | None:
        """Returns the event locked, None if another process has locked it."""
        query = select(ProviderEvent).where(ProviderEvent.id == event_id).with_for_update(skip_locked=True)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def forget_events(self, before: datetime) -> int:
        """Deletes handled events received before then; returns how many."""
        old = delete(ProviderEvent).where(
            ProviderEvent.received_at < before, ProviderEvent.state.in_(("done", "ignored"))
        )
        return (await self.session.execute(old)).rowcount  # type: ignore[attr-defined]

    async def due_events(self, now: datetime, limit: int) -> list[str]:
        query = (
            select(ProviderEvent.id)
            .where(ProviderEvent.state == "received", ProviderEvent.next_attempt_at <= now)
            .order_by(ProviderEvent.next_attempt_at)
            .limit(limit)
        )
        return list((await self.session.execute(query)).scalars())


def _progress(status: str, attempts: int) -> tuple[int, int]:
    return _RANKS.index(status), attempts
