"""Defines the tables of files, and of uploads that arrive in parts. The bytes are in the object store."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    UniqueConstraint,
    func,
)
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base
from db.repository import TenantOwned
from tenants.models import Tenant


class Purpose(StrEnum):
    ADAPTER = "adapter"
    """`adapter_model.safetensors` or `adapter_config.json`."""
    CALIBRATION = "calibration"
    """JSON lines for calibrating an adapter."""
    BATCH = "batch"
    """JSON lines, each a request of a batch."""
    BATCH_OUTPUT = "batch_output"
    """Results of a batch; not uploaded."""


UPLOADED = (Purpose.ADAPTER, Purpose.CALIBRATION, Purpose.BATCH)
"""Purposes that a client's file can have."""


class UploadStatus(StrEnum):
    PENDING = "pending"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class StoredFile(TenantOwned, Base):
    __tablename__ = "files"
    __table_args__ = (
        CheckConstraint(
            "purpose IN ('adapter', 'calibration', 'batch', 'batch_output')", name="purpose_known"
        ),
        Index(None, "tenant_id", "id"),
        Index(None, "expires_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey(Tenant.id))
    purpose: Mapped[str]
    filename: Mapped[str]
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str]
    object_key: Mapped[str]
    created_by: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime | None]


class Upload(TenantOwned, Base):
    """A file that arrives in parts."""

    __tablename__ = "uploads"
    __table_args__ = (
        CheckConstraint("purpose IN ('adapter', 'calibration', 'batch')", name="purpose_known"),
        CheckConstraint("status IN ('pending', 'completed', 'cancelled', 'expired')", name="status_known"),
        CheckConstraint("status <> 'completed' OR file_id IS NOT NULL", name="completed_is_a_file"),
        UniqueConstraint("id", "tenant_id"),
        Index(None, "tenant_id", "id"),
        Index(None, "status", "expires_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey(Tenant.id))
    purpose: Mapped[str]
    filename: Mapped[str]
    mime_type: Mapped[str]
    size: Mapped[int] = mapped_column(BigInteger)
    """Announced size in bytes: the parts must add up to it."""
    status: Mapped[str]
    file_id: Mapped[str | None]
    """Not a foreign key: the file may be deleted, but the upload stays completed."""
    file_expires_after: Mapped[int | None] = mapped_column(Integer)
    """Lifetime of the file in seconds; None: until it is deleted."""
    created_by: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime]


class UploadPart(TenantOwned, Base):
    __tablename__ = "upload_parts"
    __table_args__ = (
        ForeignKeyConstraint(
            ["upload_id", "tenant_id"], ["uploads.id", "uploads.tenant_id"], ondelete="CASCADE"
        ),
        Index(None, "upload_id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    upload_id: Mapped[str]
    size: Mapped[int] = mapped_column(BigInteger)
    md5: Mapped[str]
    sha256: Mapped[str]
    object_key: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
