"""The ledger: one row per request, partitioned by month; its sums by the minute; and the prices.

Rows name tenants and keys without foreign keys: a bill must be written down even if what it names is gone.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, Double, Index, Integer, func
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base
from db.repository import TenantOwned


class UsageRecord(TenantOwned, Base):
    """What one request is billed for. Grows while the request runs, final once `finish_reason` is set."""

    __tablename__ = "usage_records"
    __table_args__ = (
        CheckConstraint(
            "prompt_tokens >= 0 AND completion_tokens >= 0 AND cached_tokens BETWEEN 0 AND prompt_tokens",
            name="counts_sane",
        ),
        Index(None, "tenant_id", "submitted_at"),
        {"postgresql_partition_by": "RANGE (submitted_at)"},
    )

    submitted_at: Mapped[datetime] = mapped_column(primary_key=True)
    request_id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    key_id: Mapped[str]
    model: Mapped[str]
    """The pinned name it was sold under."""
    adapter_id: Mapped[str | None]
    adapter_version: Mapped[int | None] = mapped_column(Integer)
    adapter_digest: Mapped[str | None]
    endpoint: Mapped[str]
    service_tier: Mapped[str]
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    completion_tokens: Mapped[int] = mapped_column(BigInteger)
    num_choices: Mapped[int] = mapped_column(Integer)
    finish_reason: Mapped[str | None]
    queue_seconds: Mapped[float | None] = mapped_column(Double)
    """From submission to the first batch."""
    first_token_seconds: Mapped[float | None] = mapped_column(Double)
    """From submission to the first token."""
    total_seconds: Mapped[float | None] = mapped_column(Double)
    """From submission to the end."""
    preemptions: Mapped[int] = mapped_column(Integer)
    engine_id: Mapped[str]
    recorded_at: Mapped[datetime]
    """When the engine wrote the latest event down."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class UsageRollup(TenantOwned, Base):
    """The ledger's sums per minute of submission. Changed only in the transaction, and by the difference, of
    the records.
    """

    __tablename__ = "usage_rollups"

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    minute: Mapped[datetime] = mapped_column(primary_key=True)
    key_id: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    service_tier: Mapped[str] = mapped_column(primary_key=True)
    num_requests: Mapped[int] = mapped_column(BigInteger)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    completion_tokens: Mapped[int] = mapped_column(BigInteger)


class Price(Base):
    """A version of the price list, in micro-USD per million tokens. Rows are never changed: the schema sees
    to it.
    """

    __tablename__ = "prices"
    __table_args__ = (
        CheckConstraint("input >= 0 AND cached_input >= 0 AND output >= 0", name="amounts_sane"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    effective_from: Mapped[datetime] = mapped_column(unique=True)
    """Requests submitted from then on pay it, until the next version's."""
    input: Mapped[int] = mapped_column(BigInteger)
    cached_input: Mapped[int] = mapped_column(BigInteger)
    output: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
