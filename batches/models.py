"""Defines the tables of batches, and of their lines while a batch runs."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
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
from tenants.models import Tenant


class BatchStatus(StrEnum):
    VALIDATING = "validating"
    """Its lines are checked; none runs before all are valid."""
    FAILED = "failed"
    """Its file is not valid, or was lost: `errors` says why."""
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    """Its output is being written."""
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


OPEN = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.CANCELLING)
"""A process has the batch, or should have it."""
_OPEN_SQL = "status IN ('validating', 'in_progress', 'finalizing', 'cancelling')"
_ZERO = text("0")


class Batch(TenantOwned, Base):
    __tablename__ = "batches"
    __table_args__ = (
        CheckConstraint(
            "status IN ('validating', 'failed', 'in_progress', 'finalizing', 'completed', 'expired', "
            "'cancelling', 'cancelled')",
            name="status_known",
        ),
        UniqueConstraint("id", "tenant_id"),
        Index(None, "tenant_id", "id"),
        Index("ix_batches_open", "created_at", postgresql_where=text(_OPEN_SQL)),
        Index("ix_batches_input_key", "input_key", postgresql_where=text("input_key IS NOT NULL")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey(Tenant.id))
    created_by: Mapped[str]
    """Id of the key whose requests these are; of a batch created in the console, the user's."""
    endpoint: Mapped[str]
    status: Mapped[str]
    details: Mapped[dict[str, str] | None] = mapped_column("metadata", JSONB)
    input_file_id: Mapped[str]
    """Not a foreign key: the file may be deleted while the batch runs."""
    input_key: Mapped[str | None]
    """Key of the batch's own copy of the input; None once it is removed."""
    input_size: Mapped[int] = mapped_column(BigInteger)
    output_expires_after: Mapped[int | None] = mapped_column(Integer)
    """Lifetime of the output files in seconds; None: until they are deleted."""
    output_file_id: Mapped[str | None]
    error_file_id: Mapped[str | None]
    errors: Mapped[list[dict[str, Any]] | None] = mapped_column(JSONB)
    """What is wrong with the file, or why the batch was stopped: `code`, `line`, `message`, `param`."""
    model: Mapped[str | None]
    """As its lines name it, if all name the same."""
    total: Mapped[int] = mapped_column(Integer, server_default=_ZERO)
    """Lines, once they are checked."""
    completed: Mapped[int] = mapped_column(Integer, server_default=_ZERO)
    failed: Mapped[int] = mapped_column(Integer, server_default=_ZERO)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    """Of answered lines, as the next three."""
    cached_tokens: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    completion_tokens: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    reasoning_tokens: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    cost: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    """Micro-USD of answered lines."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime]
    in_progress_at: Mapped[datetime | None]
    finalizing_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    failed_at: Mapped[datetime | None]
    expired_at: Mapped[datetime | None]
    cancelling_at: Mapped[datetime | None]
    cancelled_at: Mapped[datetime | None]
    fence: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    """Fencing token, incremented by every claim."""
    lease_owner: Mapped[str | None]
    lease_until: Mapped[datetime | None]


class BatchLine(TenantOwned, Base):
    """A line that has begun, until the batch has its output files."""

    __tablename__ = "batch_lines"
    __table_args__ = (
        ForeignKeyConstraint(
            ["batch_id", "tenant_id"], ["batches.id", "batches.tenant_id"], ondelete="CASCADE"
        ),
        CheckConstraint("(content IS NULL) = (is_failed IS NULL)", name="failed_or_not"),
    )

    batch_id: Mapped[str] = mapped_column(primary_key=True)
    line: Mapped[int] = mapped_column(Integer, primary_key=True)
    """Its number in the file, from 1."""
    tenant_id: Mapped[str]
    submitted_at: Mapped[datetime]
    """When it began: however often it runs, the ledger knows it by this time and the id derived from it."""
    content: Mapped[str | None]
    """Its line of the output or error file; None while it has no result."""
    is_failed: Mapped[bool | None]
