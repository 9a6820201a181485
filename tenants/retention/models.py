"""Defines the tables of retention: periods, legal holds, deletions with their counts, certificates.

Deletions and certificates have no foreign keys: they outlive what they name. None of these rows has content.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base
from db.repository import TenantOwned


class RetentionSetting(TenantOwned, Base):
    """The period of one class of an organization's data. Classes without a row have the default."""

    __tablename__ = "retention_settings"
    __table_args__ = (CheckConstraint("days > 0", name="days_positive"),)

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    data_class: Mapped[str] = mapped_column(primary_key=True)
    days: Mapped[int] = mapped_column(Integer)
    changed_at: Mapped[datetime] = mapped_column(server_default=func.now())


class LegalHold(TenantOwned, Base):
    """Stops the deletion of a class of data, or of one object, until it is lifted."""

    __tablename__ = "legal_holds"
    __table_args__ = (
        CheckConstraint("num_nonnulls(data_class, object_id) = 1", name="class_or_object"),
        CheckConstraint("(lifted_at IS NULL) = (lifted_by IS NULL)", name="lifted_by_one"),
        Index(None, "tenant_id", "id"),
        Index("ix_legal_holds_in_force", "tenant_id", postgresql_where=text("lifted_at IS NULL")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    data_class: Mapped[str | None]
    object_id: Mapped[str | None]
    """Id of a response, conversation, file, batch, adapter or user, or of the organization: then it holds
    everything.
    """
    reason: Mapped[str]
    placed_by: Mapped[str]
    placed_at: Mapped[datetime] = mapped_column(server_default=func.now())
    lifted_by: Mapped[str | None]
    lifted_at: Mapped[datetime | None]


class Deletion(TenantOwned, Base):
    """What was deleted by an organization's periods within a day, or on one request."""

    __tablename__ = "deletions"
    __table_args__ = (
        CheckConstraint("cause IN ('periods', 'request', 'organization')", name="cause_known"),
        CheckConstraint("state IN ('open', 'deleted', 'certified')", name="state_known"),
        Index(None, "tenant_id", "id"),
        Index(None, "tenant_id", "object_id"),
        Index("ix_deletions_unfinished", "tenant_id", postgresql_where=text("state <> 'certified'")),
        Index(
            "uq_deletions_open_periods",
            "tenant_id",
            unique=True,
            postgresql_where=text("state = 'open' AND cause = 'periods'"),
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    cause: Mapped[str]
    object_kind: Mapped[str | None]
    object_id: Mapped[str | None]
    """What was asked to be deleted; None for what periods delete."""
    requested_by: Mapped[dict[str, str]] = mapped_column(JSONB, server_default=text("'{}'"))
    """Kind and id of who asked, without their address."""
    periods: Mapped[dict[str, int]] = mapped_column(JSONB, server_default=text("'{}'"))
    """Days by class, as they were when a class was last deleted from."""
    state: Mapped[str] = mapped_column(server_default=text("'open'"))
    is_wanted_soon: Mapped[bool] = mapped_column(server_default=text("false"))
    """Whether its certificate is issued as soon as nothing is left to delete, and not after a day."""
    started_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    ended_at: Mapped[datetime | None]
    certificate_id: Mapped[str | None]


class DeletionCount(TenantOwned, Base):
    """How many rows a deletion has removed from one table, and a digest of their ids."""

    __tablename__ = "deletion_counts"
    __table_args__ = (Index(None, "tenant_id"),)

    deletion_id: Mapped[str] = mapped_column(ForeignKey("deletions.id", ondelete="CASCADE"), primary_key=True)
    table_name: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    data_class: Mapped[str | None]
    num_rows: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    num_objects: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    """Objects removed from the object store."""
    oldest: Mapped[datetime | None]
    newest: Mapped[datetime | None]
    ids: Mapped[list[str] | None] = mapped_column(JSONB)
    """The ids in order of deletion; None once there are more than `MOST_LISTED`."""
    ids_digest: Mapped[bytes | None] = mapped_column(LargeBinary)
    """See `tenants.retention.digests`. None: the rows have no ids of their own."""


class OwedObject(TenantOwned, Base):
    """An object whose row is gone, and which the object store still has to delete."""

    __tablename__ = "owed_objects"
    __table_args__ = (
        UniqueConstraint("tenant_id", "object_key"),
        Index(None, "next_at"),
        Index(None, "deletion_id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    object_key: Mapped[str]
    deletion_id: Mapped[str] = mapped_column(ForeignKey("deletions.id"))
    table_name: Mapped[str]
    owed_since: Mapped[datetime] = mapped_column(server_default=func.now())
    next_at: Mapped[datetime] = mapped_column(server_default=func.now())
    """When its deletion is tried next."""
    attempts: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    error: Mapped[str | None]


class DeletionCertificate(TenantOwned, Base):
    """A signed statement of deletions, chained to the organization's one before. Never changed."""

    __tablename__ = "deletion_certificates"
    __table_args__ = (
        UniqueConstraint("tenant_id", "number"),
        CheckConstraint("number > 0", name="number_positive"),
        CheckConstraint("length(digest) = 32", name="digest_length"),
        Index(None, "tenant_id", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    number: Mapped[int] = mapped_column(BigInteger)
    """From 1, without gaps, of the organization."""
    cause: Mapped[str]
    object_id: Mapped[str | None]
    num_rows: Mapped[int] = mapped_column(BigInteger)
    num_objects: Mapped[int] = mapped_column(BigInteger)
    document: Mapped[dict[str, Any]] = mapped_column(JSONB)
    """The certificate as it is downloaded, with its signature."""
    digest: Mapped[bytes] = mapped_column(LargeBinary)
    """SHA-256 of the signed statement."""
    issued_at: Mapped[datetime]
