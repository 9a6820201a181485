"""Defines the rows of the audit log: append-only entries, and the head of each tenant's hash chain."""

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
"""Chain for changes that belong to no tenant, such as changes of plans."""


class AuditEntry(TenantOwned, Base):
    """A recorded change. Database triggers refuse UPDATE, DELETE and TRUNCATE; `prune_audit_log` alone
    deletes the oldest entries.

    There are no foreign keys: an entry outlives the objects it names.
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
    """Type of the event, such as `api_key.created`."""
    actor: Mapped[dict[str, Any]] = mapped_column(JSONB)
    """As returned by `Actor.audit_fields`."""
    target_kind: Mapped[str]
    target_id: Mapped[str]
    project_id: Mapped[str | None]
    """The project that contains the target, or the target itself if it is a project."""
    details: Mapped[dict[str, Any]] = mapped_column(JSONB, server_default=text("'{}'"))
    """The new values. Never contains secrets."""
    previous: Mapped[bytes] = mapped_column(LargeBinary)
    """Digest of the previous entry; zeros for the first."""
    digest: Mapped[bytes] = mapped_column(LargeBinary)
    """See `tenants.audit.chain`."""


class AuditHead(TenantOwned, Base):
    """The end of a tenant's chain. Writers lock it, which orders the entries."""

    __tablename__ = "audit_heads"
    __table_args__ = (
        CheckConstraint("seq >= 0", name="seq_counts"),
        CheckConstraint("length(digest) = 32", name="digest_length"),
    )

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger)
    digest: Mapped[bytes] = mapped_column(LargeBinary)
    first_seq: Mapped[int] = mapped_column(BigInteger, server_default=text("1"))
    """The oldest entry that was not deleted by the organization's retention."""
    first_previous: Mapped[bytes | None] = mapped_column(LargeBinary)
    """Digest of the entry before that one; None: there was none."""
