"""What each tenant was served like, by class and minute, and which batches of counts are in it; what it was
promised when.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ARRAY, BigInteger, CheckConstraint, Index, Integer, func
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base
from db.repository import TenantOwned


class _Sums(TenantOwned):
    """Of requests whose end fell into a stretch of time. See `sla.measures.Counts`."""

    requests: Mapped[int] = mapped_column(BigInteger)
    failed: Mapped[int] = mapped_column(BigInteger)
    first_tokens: Mapped[int] = mapped_column(BigInteger)
    first_tokens_in_time: Mapped[int] = mapped_column(BigInteger)
    rated: Mapped[int] = mapped_column(BigInteger)
    rated_fast: Mapped[int] = mapped_column(BigInteger)
    first_token_histogram: Mapped[list[int]] = mapped_column(ARRAY(BigInteger))
    output_rate_histogram: Mapped[list[int]] = mapped_column(ARRAY(BigInteger))


class SlaMinute(_Sums, Base):
    """By minute: what is kept of them."""

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
    """By hour: the minutes' sums, written with them."""

    __tablename__ = "sla_hours"
    __table_args__ = (CheckConstraint("failed BETWEEN 0 AND requests", name="counts_sane"),)

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    service_tier: Mapped[str] = mapped_column(primary_key=True)
    hour: Mapped[datetime] = mapped_column(primary_key=True)


class SlaDay(_Sums, Base):
    """By UTC day: likewise. A month is read from these."""

    __tablename__ = "sla_days"
    __table_args__ = (CheckConstraint("failed BETWEEN 0 AND requests", name="counts_sane"),)

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    service_tier: Mapped[str] = mapped_column(primary_key=True)
    day: Mapped[datetime] = mapped_column(primary_key=True)


class SlaBatch(Base):
    """A batch whose counts are in the minutes: it is not counted again. Kept for days."""

    __tablename__ = "sla_batches"
    __table_args__ = (Index(None, "counted_at"),)

    source: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    counted_at: Mapped[datetime] = mapped_column(server_default=func.now())


class PlanTerms(Base):
    """What a plan was called and promised from an instant on. Written by a trigger on plans."""

    __tablename__ = "plan_terms"

    plan_id: Mapped[str] = mapped_column(primary_key=True)
    since: Mapped[datetime] = mapped_column(primary_key=True)
    name: Mapped[str]
    terms: Mapped[dict[str, Any]] = mapped_column(JSONB)


class TenantPlan(TenantOwned, Base):
    """Which plan a tenant was on from an instant on. Written by a trigger on tenants."""

    __tablename__ = "tenant_plans"

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    since: Mapped[datetime] = mapped_column(primary_key=True)
    plan_id: Mapped[str]
