"""Rows of tenants, their users and their API keys."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Text,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base
from db.repository import TenantOwned

STANDARD_PLAN = "plan_standard"
"""Id of the plan that tenants are on unless told otherwise. The schema makes its row."""


class Plan(Base):
    """What tenants on it may do."""

    __tablename__ = "plans"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    max_adapters: Mapped[int] = mapped_column(Integer, server_default=text("100"))
    max_file_bytes: Mapped[int] = mapped_column(BigInteger, server_default=text("2147483648"))
    """Of one uploaded file."""
    pinned_adapters: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    """How many active adapters are kept in the engine's memory whether or not they are used."""
    gate: Mapped[dict[str, Any]] = mapped_column(JSONB, server_default=text("'{}'"))
    """Thresholds of calibration that differ from the defaults."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Tenant(Base):
    __tablename__ = "tenants"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.id"), server_default=text("'plan_standard'"))
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    disabled_at: Mapped[datetime | None]
    """Set: none of its keys and users is let in."""


class User(TenantOwned, Base):
    """Somebody who signs in to the console."""

    __tablename__ = "users"
    __table_args__ = (
        CheckConstraint("role IN ('admin', 'developer')", name="role_known"),
        CheckConstraint("email = lower(email)", name="email_lower"),
        Index(None, "tenant_id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    email: Mapped[str] = mapped_column(unique=True)
    password_hash: Mapped[str]
    role: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    disabled_at: Mapped[datetime | None]


class ApiKey(TenantOwned, Base):
    """A key, known by the HMAC of its text. Never deleted: usage names it."""

    __tablename__ = "api_keys"
    __table_args__ = (
        CheckConstraint("kind IN ('inference', 'admin')", name="kind_known"),
        CheckConstraint("length(digest) = 32", name="digest_length"),
        Index(None, "tenant_id", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    digest: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    prefix: Mapped[str]
    name: Mapped[str]
    kind: Mapped[str]
    scopes: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default=text("'{}'"))
    """Empty: everything its kind may do."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    """Kept to the minute."""

    def __repr__(self) -> str:
        return f"ApiKey({self.id!r}, {self.prefix!r})"
