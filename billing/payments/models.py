"""What the payment provider was told, and what it told us.

Meter events and documents are only ever added to; what changes is whether they have arrived.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, Index, Integer, UniqueConstraint, func, text
from sqlalchemy.orm import Mapped, declarative_mixin, mapped_column

from db.base import Base
from db.repository import TenantOwned


class Subscription(TenantOwned, Base):
    """That a customer is billed by the meter, from when on."""

    __tablename__ = "stripe_subscriptions"
    __table_args__ = (Index(None, "tenant_id"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    """The provider's."""
    tenant_id: Mapped[str]
    customer_id: Mapped[str]
    status: Mapped[str]
    """In the provider's words, when it was last asked."""
    metered_from: Mapped[datetime]
    """A whole hour: what was used before is none of the meter's business."""
    started_at: Mapped[datetime]
    """Nothing that happened earlier is billed by it, whatever is metered with such a time."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


@declarative_mixin
class Sending:
    """On its way to the provider."""

    state: Mapped[str] = mapped_column(server_default=text("'pending'"))
    attempts: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    first_attempt_at: Mapped[datetime | None]
    """Of those with the present timestamp. Written before anything is sent: set, it may have arrived."""
    last_attempt_at: Mapped[datetime | None]
    next_attempt_at: Mapped[datetime] = mapped_column(server_default=func.now())
    error: Mapped[str] = mapped_column(server_default=text("''"))
    """Why the last attempt failed, or why a person has to look."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    settled_at: Mapped[datetime | None]


class MeterEvent(TenantOwned, Sending, Base):
    """What an hour of a tenant's usage cost, or by how much that changed since the number before."""

    __tablename__ = "meter_events"
    __table_args__ = (
        CheckConstraint("state IN ('pending', 'sent', 'manual', 'credited', 'waived')", name="state_known"),
        CheckConstraint("value <> 0 AND number >= 0", name="value_counts"),
        CheckConstraint("date_trunc('hour', hour, 'UTC') = hour", name="whole_hour"),
        UniqueConstraint("identifier"),
        Index("ix_meter_events_open", "tenant_id", "hour", postgresql_where=text("state = 'pending'")),
    )

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    hour: Mapped[datetime] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    """From 0. The values of an hour's numbers add up to what it cost."""
    value: Mapped[int] = mapped_column(BigInteger)
    """Micro-USD. Below zero it is not metered but `credited`: the invoice has it."""
    identifier: Mapped[str]
    """`<tenant>:<hour>:<number>`: sent again within a day, the provider knows it."""
    timestamp: Mapped[datetime | None]
    """The time it is metered with, once it was tried: its hour, or later if that was invoiced already."""


class Document(TenantOwned, Sending, Base):
    """An invoice or a credit note of ours that the provider is to have as well."""

    __tablename__ = "stripe_documents"
    __table_args__ = (
        CheckConstraint("kind IN ('invoice', 'credit_note')", name="kind_known"),
        CheckConstraint("state IN ('pending', 'sent', 'manual', 'waived')", name="state_known"),
        CheckConstraint("cents > 0", name="cents_positive"),
        Index(None, "tenant_id"),
        Index(None, "invoice_id"),
        Index("ix_stripe_documents_open", "next_attempt_at", postgresql_where=text("state = 'pending'")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """Ours."""
    tenant_id: Mapped[str]
    kind: Mapped[str]
    invoice_id: Mapped[str]
    """Of the note, or the invoice itself."""
    cents: Mapped[int] = mapped_column(BigInteger)
    """What is asked for, or taken back. Of an invoice, from the first attempt on, without what was paid
    otherwise before.
    """
    provider_id: Mapped[str | None]
    """The provider's, once it is known."""


class ProviderInvoice(TenantOwned, Base):
    """An invoice of the provider's, as far along as we have seen it: it never goes back."""

    __tablename__ = "stripe_invoices"
    __table_args__ = (
        CheckConstraint("status IN ('draft', 'open', 'uncollectible', 'void', 'paid')", name="status_known"),
        Index(None, "tenant_id", "status"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    invoice_id: Mapped[str | None]
    """Ours that it stands for, if it does."""
    status: Mapped[str]
    attempt_count: Mapped[int] = mapped_column(Integer)
    amount_due: Mapped[int] = mapped_column(BigInteger)
    """Cents. So are the next two."""
    amount_paid: Mapped[int] = mapped_column(BigInteger)
    amount_remaining: Mapped[int] = mapped_column(BigInteger)
    period_start: Mapped[datetime]
    period_end: Mapped[datetime]
    failing_since: Mapped[datetime | None]
    """When we first heard that its payment failed."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class ProviderEvent(Base):
    """A webhook, by its id: what comes twice is in here once. Nobody's until what it is about is asked."""

    __tablename__ = "stripe_events"
    __table_args__ = (
        CheckConstraint("state IN ('received', 'done', 'ignored', 'failed')", name="state_known"),
        Index(None, "received_at"),
        Index("ix_stripe_events_open", "next_attempt_at", postgresql_where=text("state = 'received'")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    type: Mapped[str]
    object_id: Mapped[str]
    occurred_at: Mapped[datetime]
    state: Mapped[str] = mapped_column(server_default=text("'received'"))
    attempts: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    next_attempt_at: Mapped[datetime] = mapped_column(server_default=func.now())
    error: Mapped[str] = mapped_column(server_default=text("''"))
    received_at: Mapped[datetime] = mapped_column(server_default=func.now())
