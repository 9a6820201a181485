"""Defines the tables of spend control: alerts, when they were raised, and costs reported to budgets."""

from __future__ import annotations

from datetime import date, datetime

from sqlalchemy import (
    ARRAY,
    BigInteger,
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    Text,
    func,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base
from db.repository import TenantOwned


class SpendAlert(TenantOwned, Base):
    """An alert for when a tenant's or a project's spend in a month reaches a threshold."""

    __tablename__ = "spend_alerts"
    __table_args__ = (
        ForeignKeyConstraint(["project_id", "tenant_id"], ["projects.id", "projects.tenant_id"]),
        CheckConstraint("num_nonnulls(amount, percent) = 1", name="one_threshold"),
        CheckConstraint("amount > 0 AND percent BETWEEN 1 AND 1000", name="threshold_sane"),
        Index(None, "tenant_id", "id"),
        Index(None, "project_id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    project_id: Mapped[str | None]
    """None means all that the tenant spends."""
    amount: Mapped[int | None] = mapped_column(BigInteger)
    """Micro-USD."""
    percent: Mapped[int | None] = mapped_column(Integer)
    """Percent of the month's hard limit of the same scope."""
    recipients: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default=text("'{}'"))
    """E-mail addresses. Empty means the account's."""
    subject_prefix: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())


class SpendAlertRaised(TenantOwned, Base):
    """A raised alert: once a month for each threshold it has had."""

    __tablename__ = "spend_alerts_raised"

    alert_id: Mapped[str] = mapped_column(ForeignKey("spend_alerts.id", ondelete="CASCADE"), primary_key=True)
    month: Mapped[date] = mapped_column(primary_key=True)
    threshold: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    """Micro-USD."""
    tenant_id: Mapped[str]
    at: Mapped[datetime] = mapped_column(server_default=func.now())


class SpendAdjustment(TenantOwned, Base):
    """A cost that no API request reserved, or its reversal, as reported to the budgets."""

    __tablename__ = "spend_adjustments"
    __table_args__ = (
        Index(None, "tenant_id", "at"),
        Index("ix_spend_adjustments_open", "told_at", postgresql_where=text("settled_at IS NULL")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """The id of the charge or the reversal."""
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    at: Mapped[datetime]
    """The ledger's time of it, which decides the month it counts to."""
    amount: Mapped[int] = mapped_column(BigInteger)
    """Micro-USD, negative for a reversal."""
    told_at: Mapped[datetime] = mapped_column(server_default=func.now())
    settled_at: Mapped[datetime | None]
    """None while Redis may not have settled it."""
