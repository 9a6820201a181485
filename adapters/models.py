"""Defines the tables of adapters, their versions and events. A version is packed weights, identified by
digest.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
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


class VersionState(StrEnum):
    UPLOADING = "uploading"
    """Created; its files are still being uploaded, imported or copied."""
    VALIDATING = "validating"
    """Its files are being inspected and packed."""
    CALIBRATING = "calibrating"
    """Packed; being measured on the engine that will serve it."""
    READY = "ready"
    FAILED = "failed"
    """Rejected by the inspection or by the calibration gate: `error` says why."""
    DISABLED = "disabled"
    """Was ready and was taken out of service on its own, not with its adapter."""
    DELETING = "deleting"
    """Deleted and not resolvable. Its row is removed after its objects."""


PENDING = (VersionState.UPLOADING, VersionState.VALIDATING, VersionState.CALIBRATING)
"""States of a version that will change by themselves."""


class Adapter(TenantOwned, Base):
    __tablename__ = "adapters"
    __table_args__ = (
        # A deleted adapter's name can be used again.
        Index(
            "uq_adapters_live_name",
            "tenant_id",
            "base",
            "name",
            unique=True,
            postgresql_where=text("deleted_at IS NULL"),
        ),
        UniqueConstraint("id", "tenant_id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    base: Mapped[str]
    """Name of the base model the adapter was trained for."""
    name: Mapped[str]
    description: Mapped[str | None]
    active_version: Mapped[int | None] = mapped_column(Integer)
    """The version that the unpinned name serves."""
    previous_version: Mapped[int | None] = mapped_column(Integer)
    """The version that was active before: the target of a rollback."""
    created_by: Mapped[str | None]
    """Id of the key or user that created it."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    disabled_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]


class AdapterVersion(TenantOwned, Base):
    __tablename__ = "adapter_versions"
    __table_args__ = (
        # Both columns: a version cannot belong to another tenant than its adapter does.
        ForeignKeyConstraint(["adapter_id", "tenant_id"], ["adapters.id", "adapters.tenant_id"]),
        CheckConstraint(
            "state IN ('uploading', 'validating', 'calibrating', 'ready', 'failed', 'disabled', 'deleting')",
            name="state_known",
        ),
        CheckConstraint(
            "state <> 'ready' OR (digest IS NOT NULL AND rank IS NOT NULL)", name="ready_is_packed"
        ),
        CheckConstraint("version > 0", name="version_positive"),
        CheckConstraint("rank > 0", name="rank_positive"),
        Index(None, "digest"),
    )

    adapter_id: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    tenant_id: Mapped[str]
    digest: Mapped[str | None]
    """Hex SHA-256 of the packed artifact that is served."""
    rank: Mapped[int | None] = mapped_column(Integer)
    """Largest rank of any module."""
    dtype: Mapped[str | None]
    """Type in which that artifact stores weights."""
    base_digest: Mapped[str]
    """Digest of the base's config and weights that it was packed for."""
    size: Mapped[int | None] = mapped_column(BigInteger)
    """Bytes of the packed artifact that is served."""
    artifacts: Mapped[dict[str, Any]] = mapped_column(JSONB, server_default=text("'{}'"))
    """Every packed artifact: by dtype, its `digest` and `size`."""
    sources: Mapped[dict[str, Any]] = mapped_column(JSONB, server_default=text("'{}'"))
    """The uploaded files: by file name, the object's `key`, `size` and `sha256`."""
    origin: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    """Where its files were imported from, and the commit; None for uploads."""
    inspection: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    """Results of the inspection: modules, ranks, norms."""
    calibration: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    """The report's summary; the full report is an object beside the artifacts."""
    activate: Mapped[bool] = mapped_column(Boolean, server_default=text("false"))
    """Whether it is activated as soon as it is ready."""
    state: Mapped[str]
    error: Mapped[str | None]
    """Why it failed, written for the tenant."""
    error_field: Mapped[str | None]
    """The file, config field or tensor that is wrong."""
    signed_at: Mapped[datetime | None]
    """When the platform signed it last."""
    signature_problem: Mapped[str | None]
    """Why it is refused: a stored file, or the signature, is not what it was."""
    uploader_key: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    """The organization's public key that its upload was signed with: `id`, `name`, `key_id`."""
    override_reason: Mapped[str | None]
    """Why an operator let it pass although the gate rejected it."""
    created_by: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    ready_at: Mapped[datetime | None]


class AdapterEvent(TenantOwned, Base):
    """An event of an adapter, a version or a job: written once, never changed."""

    __tablename__ = "adapter_events"
    __table_args__ = (
        CheckConstraint("level IN ('info', 'warning', 'error')", name="level_known"),
        Index(None, "tenant_id", "adapter_id", "id"),
        Index(None, "tenant_id", "job_id", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    adapter_id: Mapped[str]
    """Not a foreign key: events outlive their adapter."""
    version: Mapped[int | None] = mapped_column(Integer)
    job_id: Mapped[str | None]
    type: Mapped[str]
    """Such as `version.ready`, `adapter.deleted`, `job.paused`."""
    level: Mapped[str]
    message: Mapped[str]
    data: Mapped[dict[str, Any]] = mapped_column(JSONB, server_default=text("'{}'"))
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
