"""Defines the tables of billing accounts, credits, invoices and credit notes.

Money is whole micro-USD, except `*_cents`, which are the amounts collected. All tables but `BillingAccount`
are append-only: triggers reject UPDATE, DELETE and TRUNCATE, and a correction is a new row. There are no
foreign keys to tenants: a bill outlives what it names.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Date,
    ForeignKey,
    Index,
    Integer,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base
from db.repository import TenantOwned


class BillingAccount(TenantOwned, Base):
    """How a tenant pays, and its billing details. Created when first needed."""

    __tablename__ = "billing_accounts"
    __table_args__ = (
        CheckConstraint("mode IN ('postpaid', 'prepaid')", name="mode_known"),
        CheckConstraint("state IN ('active', 'grace', 'suspended')", name="state_known"),
        CheckConstraint("(state = 'grace') = (grace_until IS NOT NULL)", name="grace_ends"),
        Index("uq_billing_accounts_stripe_customer_id", "stripe_customer_id", unique=True),
        Index("uq_billing_accounts_stripe_subscription_id", "stripe_subscription_id", unique=True),
    )

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    mode: Mapped[str] = mapped_column(server_default=text("'postpaid'"))
    """If prepaid, the last of the tenant's `PrepaidPeriod`s has no end."""
    state: Mapped[str] = mapped_column(server_default=text("'active'"))
    grace_until: Mapped[datetime | None]
    stripe_customer_id: Mapped[str | None]
    stripe_subscription_id: Mapped[str | None]
    name: Mapped[str] = mapped_column(server_default=text("''"))
    """The customer's name on the bill. Empty means the tenant's."""
    email: Mapped[str] = mapped_column(server_default=text("''"))
    address: Mapped[str] = mapped_column(server_default=text("''"))
    """Lines of text."""
    country: Mapped[str] = mapped_column(server_default=text("''"))
    """Two letters, ISO 3166."""
    tax_id: Mapped[str] = mapped_column(server_default=text("''"))
    provider_details: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    """The details that the payment provider has."""
    provider_error: Mapped[str] = mapped_column(server_default=text("''"))
    """Why the provider refused the details; empty if it did not."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())


class PrepaidPeriod(TenantOwned, Base):
    """A period whose usage is paid from the balance. Whole minutes; periods do not overlap."""

    __tablename__ = "prepaid_periods"
    __table_args__ = (
        CheckConstraint("until > since", name="ends_later"),
        CheckConstraint(
            "date_trunc('minute', since, 'UTC') = since AND date_trunc('minute', until, 'UTC') = until",
            name="whole_minutes",
        ),
        Index("uq_prepaid_periods_open", "tenant_id", unique=True, postgresql_where=text("until IS NULL")),
    )

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    since: Mapped[datetime] = mapped_column(primary_key=True)
    """Inclusive."""
    until: Mapped[datetime | None]
    """Exclusive. None means that the period goes on."""


class CreditEntry(TenantOwned, Base):
    """Money put into or taken out of a tenant's balance. Prepaid usage is in the ledger alone."""

    __tablename__ = "credits"
    __table_args__ = (
        CheckConstraint(
            "(kind IN ('top_up', 'grant', 'credit_note', 'kept') AND amount > 0)"
            " OR (kind IN ('applied', 'refund', 'expiry') AND amount < 0)",
            name="sign_of_kind",
        ),
        CheckConstraint("kind NOT IN ('applied', 'kept') OR invoice_id IS NOT NULL", name="of_invoice"),
        CheckConstraint("expires_at IS NULL OR kind IN ('top_up', 'grant')", name="expiring_kinds"),
        UniqueConstraint("tenant_id", "kind", "reference"),
        Index(None, "tenant_id", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    at: Mapped[datetime]
    kind: Mapped[str]
    """`top_up`: paid in; `grant`: given; `credit_note`: from a note; `kept`: from an invoice below zero;
    `applied`: to an invoice; `refund`: paid back; `expiry`: of an entry.
    """
    amount: Mapped[int] = mapped_column(BigInteger)
    reference: Mapped[str]
    """The origin, such as a payment's id. Of each kind, a reference counts once."""
    reason: Mapped[str] = mapped_column(server_default=text("''"))
    invoice_id: Mapped[str | None] = mapped_column(ForeignKey("invoices.id"))
    expires_at: Mapped[datetime | None]
    """When what is left of it is taken back."""
    actor: Mapped[dict[str, Any]] = mapped_column(JSONB)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class DocumentNumber(Base):
    """The last number of a kind of document. Its row lock keeps the numbers without gaps."""

    __tablename__ = "document_numbers"
    __table_args__ = (CheckConstraint("last >= 0", name="last_counts"),)

    kind: Mapped[str] = mapped_column(primary_key=True)
    last: Mapped[int] = mapped_column(BigInteger)


class Invoice(TenantOwned, Base):
    """What a tenant owes for a UTC month. Final as soon as it exists."""

    __tablename__ = "invoices"
    __table_args__ = (
        UniqueConstraint("number"),
        UniqueConstraint("tenant_id", "month"),
        UniqueConstraint("id", "tenant_id"),
        CheckConstraint("number > 0", name="number_positive"),
        CheckConstraint("extract(day FROM month) = 1", name="whole_month"),
        CheckConstraint("currency = 'usd'", name="currency_known"),
        CheckConstraint("total >= 0", name="never_below_zero"),
        CheckConstraint(
            "total = total_cents * 10000 + carried_out AND ((carried_out >= -5000 AND carried_out < 5000) OR"
            " (total_cents = 0 AND carried_out >= 5000 AND carried_out < minimum_cents * 10000 - 5000))",
            name="rounded_half_up",
        ),
        CheckConstraint("minimum_cents >= 0", name="minimum_counts"),
        Index(None, "tenant_id", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    number: Mapped[int] = mapped_column(BigInteger)
    """Consecutive over all tenants, without gaps."""
    month: Mapped[date] = mapped_column(Date)
    """The month's first day."""
    issued_at: Mapped[datetime]
    due_at: Mapped[datetime]
    currency: Mapped[str] = mapped_column(server_default=text("'usd'"))
    total: Mapped[int] = mapped_column(BigInteger)
    """The sum of the lines."""
    total_cents: Mapped[int] = mapped_column(BigInteger)
    """The amount to collect: `total` rounded half up, or zero below `minimum_cents`."""
    carried_out: Mapped[int] = mapped_column(BigInteger)
    """`total` less the amount to collect, carried to the next invoice."""
    minimum_cents: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    """The minimum charge when it was made."""
    seller: Mapped[dict[str, str]] = mapped_column(JSONB)
    customer: Mapped[dict[str, str]] = mapped_column(JSONB)
    """The seller's and the customer's details at the time."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class InvoiceLine(TenantOwned, Base):
    __tablename__ = "invoice_lines"
    __table_args__ = (
        CheckConstraint("number > 0", name="number_positive"),
        CheckConstraint(
            "kind IN ('usage', 'storage', 'calibration', 'fee', 'allowance', 'prepaid', 'carried', 'credit',"
            " 'kept', 'earnings')",
            name="kind_known",
        ),
        Index(None, "tenant_id", "month"),
    )

    invoice_id: Mapped[str] = mapped_column(ForeignKey("invoices.id"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    """Counts from 1, in display order."""
    tenant_id: Mapped[str]
    kind: Mapped[str]
    """`usage`, `storage`, `calibration` and the negative `earnings` come from the ledger; `prepaid` was paid
    from the balance; `carried` comes from the previous invoice; `credit` is taken from the balance, `kept` is
    added to it.
    """
    month: Mapped[date] = mapped_column(Date)
    """The month of the usage: before the invoice's month if it was recorded late."""
    description: Mapped[str]
    details: Mapped[dict[str, Any]] = mapped_column(JSONB, server_default=text("'{}'"))
    """The key and quantity of lines from the ledger: see `billing.invoices.lines`."""
    amount: Mapped[int] = mapped_column(BigInteger)


class CreditNote(TenantOwned, Base):
    """A document that takes back all or part of an invoice."""

    __tablename__ = "credit_notes"
    __table_args__ = (
        UniqueConstraint("number"),
        CheckConstraint("number > 0", name="number_positive"),
        CheckConstraint("amount_cents > 0", name="amount_positive"),
        CheckConstraint("settlement IN ('due', 'credit', 'refund')", name="settlement_known"),
        Index(None, "tenant_id", "id"),
        Index(None, "invoice_id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    number: Mapped[int] = mapped_column(BigInteger)
    """Consecutive over all tenants, without gaps."""
    invoice_id: Mapped[str] = mapped_column(ForeignKey("invoices.id"))
    issued_at: Mapped[datetime]
    amount_cents: Mapped[int] = mapped_column(BigInteger)
    settlement: Mapped[str]
    """`due`: lowers what is owed; of what was paid, `credit`: goes into the balance; `refund`: paid back."""
    reason: Mapped[str]
    actor: Mapped[dict[str, Any]] = mapped_column(JSONB)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class InvoicePayment(TenantOwned, Base):
    """A payment of an invoice, or a refund."""

    __tablename__ = "invoice_payments"
    __table_args__ = (
        CheckConstraint(
            "(kind = 'payment' AND amount_cents > 0) OR (kind = 'refund' AND amount_cents < 0)",
            name="sign_of_kind",
        ),
        UniqueConstraint("tenant_id", "kind", "reference"),
        Index(None, "invoice_id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    invoice_id: Mapped[str] = mapped_column(ForeignKey("invoices.id"))
    at: Mapped[datetime]
    kind: Mapped[str]
    amount_cents: Mapped[int] = mapped_column(BigInteger)
    reference: Mapped[str]
    """The payment's id at the provider. Of each kind, a reference counts once."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class ClosedMonth(Base):
    """A month that every tenant has been invoiced for. Later usage of it is on later invoices."""

    __tablename__ = "closed_months"
    __table_args__ = (CheckConstraint("extract(day FROM month) = 1", name="whole_month"),)

    month: Mapped[date] = mapped_column(Date, primary_key=True)
    closed_at: Mapped[datetime]
    num_invoices: Mapped[int] = mapped_column(Integer)


class PlanFees(Base):
    """A plan's name and fees from a moment on. Written by a trigger on plans."""

    __tablename__ = "plan_fees"

    plan_id: Mapped[str] = mapped_column(primary_key=True)
    since: Mapped[datetime] = mapped_column(primary_key=True)
    name: Mapped[str]
    monthly_fee: Mapped[int] = mapped_column(BigInteger)
    """Micro-USD, besides usage."""
    included_usage: Mapped[int] = mapped_column(BigInteger)
    """Micro-USD of a month's usage that the fee covers."""
