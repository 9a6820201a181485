"""Rows of the audit log: entries that are only ever added, and where each tenant's chain ends."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, Index, LargeBinary, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base
from db.repository import TenantOwned
from tenants.models import OPERATOR_TENANT

OPERATOR_CHAIN = OPERATOR_TENANT
"""Where that goes which is no one tenant's, such as plans."""


class AuditEntry(TenantOwned, Base):
    """Something that was changed. Triggers refuse UPDATE, DELETE and TRUNCATE.

    No foreign keys: an entry outlives what it tells of.
    """

    __tablename__ = "audit_log"
    __table_args__ = (
        CheckConstraint("seq > 0", name="seq_positive"),
        CheckConstraint("length(digest) = 32 AND length(previous) = 32", name="digest_length"),
        Index(None, "id", unique=True),
    )

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    """From 1, without gaps, in the order of the commits."""
    id: Mapped[str]
    at: Mapped[datetime]
    type: Mapped[str]
    """What happened, as `api_key.created`."""
    actor: Mapped[dict[str, Any]] = mapped_column(JSONB)
    """As `Actor.described`."""
    target_kind: Mapped[str]
    target_id: Mapped[str]
    project_id: Mapped[str | None]
    """The project that the target is in, or is."""
    details: Mapped[dict[str, Any]] = mapped_column(JSONB, server_default=text("'{}'"))
    """What it was made or changed to. No secrets."""
    previous: Mapped[bytes] = mapped_column(LargeBinary)
    """The digest of the entry before; of the first, zeros."""
    digest: Mapped[bytes] = mapped_column(LargeBinary)
    """See `tenants.audit.chain`."""


class AuditHead(TenantOwned, Base):
    """The end of a tenant's chain. Its lock is what gives entries their order."""

    __tablename__ = "audit_heads"
    __table_args__ = (
        CheckConstraint("seq >= 0", name="seq_counts"),
        CheckConstraint("length(digest) = 32", name="digest_length"),
    )

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger)
    digest: Mapped[bytes] = mapped_column(LargeBinary)
