"""Rows of tenants' adapters and their versions. An adapter is a name; a version is packed weights, known by
their digest.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Integer,
    UniqueConstraint,
    func,
)
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base
from db.repository import TenantOwned


class VersionState(StrEnum):
    PENDING = "pending"
    """Accepted, not packed yet."""
    READY = "ready"
    FAILED = "failed"


class Adapter(TenantOwned, Base):
    __tablename__ = "adapters"
    __table_args__ = (UniqueConstraint("tenant_id", "base", "name"), UniqueConstraint("id", "tenant_id"))

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    base: Mapped[str]
    """Name of the base model it is grafted on."""
    name: Mapped[str]
    active_version: Mapped[int | None] = mapped_column(Integer)
    """What the unpinned name serves."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    disabled_at: Mapped[datetime | None]


class AdapterVersion(TenantOwned, Base):
    __tablename__ = "adapter_versions"
    __table_args__ = (
        # Both columns: a version cannot belong to another tenant than its adapter.
        ForeignKeyConstraint(["adapter_id", "tenant_id"], ["adapters.id", "adapters.tenant_id"]),
        CheckConstraint("state IN ('pending', 'ready', 'failed')", name="state_known"),
        CheckConstraint(
            "state <> 'ready' OR (digest IS NOT NULL AND rank IS NOT NULL)", name="ready_is_packed"
        ),
        CheckConstraint("version > 0", name="version_positive"),
        CheckConstraint("rank > 0", name="rank_positive"),
    )

    adapter_id: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    tenant_id: Mapped[str]
    digest: Mapped[str | None]
    """Hex SHA-256 of the packed artifact."""
    rank: Mapped[int | None] = mapped_column(Integer)
    """Largest rank of any module."""
    base_digest: Mapped[str]
    """Of the base's config and weights it was packed against."""
    size: Mapped[int | None] = mapped_column(BigInteger)
    """Bytes of the packed artifact."""
    state: Mapped[str]
    error: Mapped[str | None]
    """Why it failed, in words for the tenant."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
