"""Defines the tables of service levels: counts by tenant, tier and time, counted batches, and plan terms."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ARRAY, BigInteger, CheckConstraint, Index, Integer, func
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base
from db.repository import TenantOwned


class _Sums(TenantOwned):
    """Counts of requests that ended in a time range. See `sla.measures.Counts`."""

    requests: Mapped[int] = mapped_column(BigInteger)
    failed: Mapped[int] = mapped_column(BigInteger)
    first_tokens: Mapped[int] = mapped_column(BigInteger)
    first_tokens_in_time: Mapped[int] = mapped_column(BigInteger)
    rated: Mapped[int] = mapped_column(BigInteger)
    rated_fast: Mapped[int] = mapped_column(BigInteger)
    first_token_histogram: Mapped[list[int]] = mapped_column(ARRAY(BigInteger))
    output_rate_histogram: Mapped[list[int]] = mapped_column(ARRAY(BigInteger))


class SlaMinute(_Sums, Base):
    """Counts by minute."""

    __tablename__ = "sla_minutes"
    __table_args__ = (
        CheckConstraint("failed BETWEEN 0 AND requests", name="counts_sane"),
        Index(None, "minute"),
        {"postgresql_partition_by": "RANGE (minute)"},
    )

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    service_tier: Mapped[str] = mapped_column(primary_key=True)
    minute: Mapped[datetime] = mapped_column(primary_key=True)


class SlaHour(_Sums, Base):
    """Sums of the minutes by hour, written with them."""

    __tablename__ = "sla_hours"
    __table_args__ = (CheckConstraint("failed BETWEEN 0 AND requests", name="counts_sane"),)

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    service_tier: Mapped[str] = mapped_column(primary_key=True)
    hour: Mapped[datetime] = mapped_column(primary_key=True)


class SlaDay(_Sums, Base):
    """Sums of the minutes by UTC day, written with them. A month is read from these."""

    __tablename__ = "sla_days"
    __table_args__ = (CheckConstraint("failed BETWEEN 0 AND requests", name="counts_sane"),)

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    service_tier: Mapped[str] = mapped_column(primary_key=True)
    day: Mapped[datetime] = mapped_column(primary_key=True)


class SlaBatch(Base):
    """A batch whose counts are in the minutes, so that it is not counted again. Kept for days."""

    __tablename__ = "sla_batches"
    __table_args__ = (Index(None, "counted_at"),)

    source: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    counted_at: Mapped[datetime] = mapped_column(server_default=func.now())


class PlanTerms(Base):
    """A plan's name and terms from a moment on. Written by a trigger on plans."""

    __tablename__ = "plan_terms"

    plan_id: Mapped[str] = mapped_column(primary_key=True)
    since: Mapped[datetime] = mapped_column(primary_key=True)
    name: Mapped[str]
    terms: Mapped[dict[str, Any]] = mapped_column(JSONB)


class TenantPlan(TenantOwned, Base):
    """A tenant's plan from a moment on. Written by a trigger on tenants."""

    __tablename__ = "tenant_plans"

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    since: Mapped[datetime] = mapped_column(primary_key=True)
    plan_id: Mapped[str]
