"""Defines the tables of what was sent to the payment provider and what it sent us.

Meter events and documents are only added; what changes is whether they have arrived.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, Index, Integer, UniqueConstraint, func, text
from sqlalchemy.orm import Mapped, declarative_mixin, mapped_column

from db.base import Base
from db.repository import TenantOwned


class Subscription(TenantOwned, Base):
    """A customer's subscription, and since when its usage is metered."""

    __tablename__ = "stripe_subscriptions"
    __table_args__ = (Index(None, "tenant_id"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    """The provider's id."""
    tenant_id: Mapped[str]
    customer_id: Mapped[str]
    status: Mapped[str]
    """The provider's status when it was last read."""
    metered_from: Mapped[datetime]
    """A whole hour. Earlier usage is not metered."""
    started_at: Mapped[datetime]
    """Nothing earlier is billed by it, whatever time usage is metered with."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


@declarative_mixin
class Sending:
    """The state of sending one row to the provider."""

    state: Mapped[str] = mapped_column(server_default=text("'pending'"))
    attempts: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    first_attempt_at: Mapped[datetime | None]
    """The first attempt with the present timestamp. Set before anything is sent, so it may have arrived."""
    last_attempt_at: Mapped[datetime | None]
    next_attempt_at: Mapped[datetime] = mapped_column(server_default=func.now())
    error: Mapped[str] = mapped_column(server_default=text("''"))
    """Why the last attempt failed, or why an operator is needed."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    settled_at: Mapped[datetime | None]


class MeterEvent(TenantOwned, Sending, Base):
    """The cost of an hour of a tenant's usage, or its change since the previous number."""

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
    """Counts from 0. The values of an hour's numbers add up to its cost."""
    value: Mapped[int] = mapped_column(BigInteger)
    """Micro-USD. A negative value is not metered but `credited`: the invoice contains it."""
    identifier: Mapped[str]
    """`<tenant>:<hour>:<number>`. The provider recognizes it for a day."""
    timestamp: Mapped[datetime | None]
    """The time it is metered with, set at the first attempt: its hour, or later if that was invoiced."""


class Document(TenantOwned, Sending, Base):
    """One of our invoices or credit notes that the provider gets as well."""

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
    """Our id of the document."""
    tenant_id: Mapped[str]
    kind: Mapped[str]
    invoice_id: Mapped[str]
    """The invoice of the note, or the invoice itself."""
    cents: Mapped[int] = mapped_column(BigInteger)
    """The amount to collect or to credit. For an invoice, from the first attempt on, it excludes earlier
    payments made otherwise.
    """
    provider_id: Mapped[str | None]
    """The provider's id, once it is known."""


class ProviderInvoice(TenantOwned, Base):
    """An invoice at the provider in the latest state we saw. Its state never goes back."""

    __tablename__ = "stripe_invoices"
    __table_args__ = (
        CheckConstraint("status IN ('draft', 'open', 'uncollectible', 'void', 'paid')", name="status_known"),
        Index(None, "tenant_id", "status"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    invoice_id: Mapped[str | None]
    """The id of our invoice that it stands for, if any."""
    status: Mapped[str]
    attempt_count: Mapped[int] = mapped_column(Integer)
    amount_due: Mapped[int] = mapped_column(BigInteger)
    """Cents, as the next two."""
    amount_paid: Mapped[int] = mapped_column(BigInteger)
    amount_remaining: Mapped[int] = mapped_column(BigInteger)
    period_start: Mapped[datetime]
    period_end: Mapped[datetime]
    failing_since: Mapped[datetime | None]
    """When we first learned that its payment failed."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class ProviderEvent(Base):
    """A webhook event, stored once by its id. It belongs to no tenant until its object is read."""

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
