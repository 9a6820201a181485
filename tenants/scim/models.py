"""Defines the rows of provisioning: SCIM tokens, what identity providers say of users, and groups."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base
from db.repository import TenantOwned


class ScimToken(TenantOwned, Base):
    """A bearer token of an identity provider, stored as its HMAC."""

    __tablename__ = "scim_tokens"
    __table_args__ = (
        CheckConstraint("length(digest) = 32", name="digest_length"),
        Index(None, "tenant_id", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    digest: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    secret_id: Mapped[str | None]
    """Id of the key secret that the digest was made with; see `tenants.key_secrets`. None: not known."""
    prefix: Mapped[str]
    name: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    """Updated at most once a minute."""

    def __repr__(self) -> str:
        return f"ScimToken({self.id!r}, {self.prefix!r})"


class ScimUser(TenantOwned, Base):
    """What the identity provider says of a user. Deleted with the user's membership."""

    __tablename__ = "scim_users"
    __table_args__ = (
        ForeignKeyConstraint(["user_id", "tenant_id"], ["users.id", "users.tenant_id"]),
        Index("uq_scim_users_user_name", "tenant_id", text("lower(user_name)"), unique=True),
    )

    user_id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    user_name: Mapped[str]
    external_id: Mapped[str | None]
    """The provider's id of the user."""
    attributes: Mapped[dict[str, Any]] = mapped_column(JSONB, server_default=text("'{}'"))
    """`displayName`, `name` and `emails`, as they were sent."""
    is_created_here: Mapped[bool] = mapped_column(server_default=text("false"))
    """Whether the provider created the user; otherwise they joined by invitation."""
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())


class ScimGroup(TenantOwned, Base):
    """A group of the identity provider."""

    __tablename__ = "scim_groups"
    __table_args__ = (
        UniqueConstraint("id", "tenant_id"),
        CheckConstraint("role IN ('owner', 'admin', 'developer', 'billing', 'viewer')", name="role_known"),
        Index(None, "tenant_id", "id"),
        Index("uq_scim_groups_display_name", "tenant_id", text("lower(display_name)"), unique=True),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    display_name: Mapped[str]
    external_id: Mapped[str | None]
    role: Mapped[str | None]
    """The role that its members have, set by an owner. None: the group gives none."""
    is_added_by_hand: Mapped[bool] = mapped_column(server_default=text("false"))
    """Whether an owner added it, for sign-ins to name; otherwise it came by SCIM."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())


class ScimGroupMember(TenantOwned, Base):
    __tablename__ = "scim_group_members"
    __table_args__ = (
        ForeignKeyConstraint(
            ["group_id", "tenant_id"], ["scim_groups.id", "scim_groups.tenant_id"], ondelete="CASCADE"
        ),
        ForeignKeyConstraint(["user_id", "tenant_id"], ["users.id", "users.tenant_id"]),
        Index(None, "tenant_id", "user_id"),
    )

    group_id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
