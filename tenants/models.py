"""Rows of tenants, their projects, their users and their API keys. The audit log has its own."""

from __future__ import annotations

from datetime import datetime
from ipaddress import IPv4Network, IPv6Network
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import CIDR, JSONB
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base
from db.repository import TenantOwned

STANDARD_PLAN = "plan_standard"
"""Id of the plan that tenants are on unless told otherwise. The schema makes its row."""
OPERATOR_TENANT = "operator"
"""Id of the service itself, whose users are its operators. The schema makes its row; no list of tenants has
it.
"""


class Plan(Base):
    """What tenants on it may do."""

    __tablename__ = "plans"
    __table_args__ = (CheckConstraint("monthly_fee >= 0 AND included_usage >= 0", name="fees_sane"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    max_adapters: Mapped[int] = mapped_column(Integer, server_default=text("100"))
    max_file_bytes: Mapped[int] = mapped_column(BigInteger, server_default=text("2147483648"))
    """Of one uploaded file."""
    pinned_adapters: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    """How many active adapters are kept in the engine's memory whether or not they are used."""
    gate: Mapped[dict[str, Any]] = mapped_column(JSONB, server_default=text("'{}'"))
    """Thresholds of calibration that differ from the defaults."""
    terms: Mapped[dict[str, Any]] = mapped_column(JSONB, server_default=text("'{}'"))
    """By class of service, what differs from the default terms: see `tenants.terms`."""
    limits: Mapped[dict[str, int]] = mapped_column(JSONB, server_default=text("'{}'"))
    """Amounts of limits that every tenant on it has, by metric."""
    monthly_fee: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    """Micro-USD, beside what is used."""
    included_usage: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    """Micro-USD of a month's usage that the fee covers."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Tenant(Base):
    __tablename__ = "tenants"
    __table_args__ = (
        CheckConstraint("billing_state IN ('active', 'grace', 'suspended')", name="billing_state_known"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.id"), server_default=text("'plan_standard'"))
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    disabled_at: Mapped[datetime | None]
    """Set: none of its keys and users is let in."""
    billing_state: Mapped[str] = mapped_column(server_default=text("'active'"))
    """Whether it pays, as billing last found. Suspended: its inference keys are refused."""
    second_factor_required: Mapped[bool] = mapped_column(server_default=text("false"))
    """Set: its users get to nothing but to setting up a second factor before they have one."""


class Project(TenantOwned, Base):
    """What a tenant keeps apart: keys, members, limits and usage. Never deleted: usage names it."""

    __tablename__ = "projects"
    __table_args__ = (
        UniqueConstraint("id", "tenant_id"),
        CheckConstraint("NOT is_default OR archived_at IS NULL", name="default_kept"),
        CheckConstraint("service_tiers <@ ARRAY['priority', 'flex']", name="service_tiers_known"),
        CheckConstraint("auto_tier IN ('priority', 'default')", name="auto_tier_known"),
        Index(None, "tenant_id", "id"),
        Index("uq_projects_default", "tenant_id", unique=True, postgresql_where=text("is_default")),
        Index(
            "uq_projects_live_name",
            "tenant_id",
            "name",
            unique=True,
            postgresql_where=text("archived_at IS NULL"),
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str]
    is_default: Mapped[bool] = mapped_column(server_default=text("false"))
    """Made with its tenant, and where keys go unless told otherwise."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    archived_at: Mapped[datetime | None]
    """Set: none of its keys is let in."""
    models: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default=text("'{}'"))
    """Names that all its keys may ask for, as on a key's list; with `models_denied`, may not. Empty: no such
    rule.
    """
    models_denied: Mapped[bool] = mapped_column(server_default=text("false"))
    service_tiers: Mapped[list[str] | None] = mapped_column(ARRAY(Text))
    """Beside `default`, which of the plan's classes of service its keys may ask for. None: all of them."""
    auto_tier: Mapped[str | None]
    """What `auto` means. None: the best of the plan's."""


class User(TenantOwned, Base):
    """Somebody who signs in to the console."""

    __tablename__ = "users"
    __table_args__ = (
        UniqueConstraint("id", "tenant_id"),
        CheckConstraint("role IN ('owner', 'admin', 'developer', 'billing', 'viewer')", name="role_known"),
        CheckConstraint("email = lower(email)", name="email_lower"),
        Index(None, "tenant_id", "id"),
        Index("uq_users_live_email", "email", unique=True, postgresql_where=text("removed_at IS NULL")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    email: Mapped[str]
    name: Mapped[str] = mapped_column(server_default=text("''"))
    password_hash: Mapped[str | None]
    """None: no password lets them in, an identity does."""
    role: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    disabled_at: Mapped[datetime | None]
    removed_at: Mapped[datetime | None]
    """Set: no longer a member. The row stays, for what names it."""
    sessions_from: Mapped[datetime | None]
    """Console sessions that began before are over: since then the password is another one."""


class SecondFactor(TenantOwned, Base):
    """What a user's authenticator application shares with us."""

    __tablename__ = "second_factors"
    __table_args__ = (ForeignKeyConstraint(["user_id", "tenant_id"], ["users.id", "users.tenant_id"]),)

    user_id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    secret: Mapped[bytes] = mapped_column(LargeBinary)
    """Sealed under the server's secret: codes cannot be computed from a digest."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    confirmed_at: Mapped[datetime | None]
    """None: it was shown, and no code has proved yet that it arrived. Nothing is asked for until then."""
    last_step: Mapped[int | None] = mapped_column(BigInteger)
    """Number of the 30 seconds whose code was used last: no code of it, or of before, is good again."""
    recovery: Mapped[list[bytes]] = mapped_column(ARRAY(LargeBinary), server_default=text("'{}'"))
    """HMACs of the codes that are good once each in place of the application's."""

    def __repr__(self) -> str:
        return f"SecondFactor({self.user_id!r})"


class Identity(TenantOwned, Base):
    """Whom another provider calls by `subject` is this user."""

    __tablename__ = "identities"
    __table_args__ = (
        ForeignKeyConstraint(["user_id", "tenant_id"], ["users.id", "users.tenant_id"]),
        UniqueConstraint("issuer", "subject"),
        Index(None, "tenant_id", "user_id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    user_id: Mapped[str]
    issuer: Mapped[str]
    subject: Mapped[str]
    """The provider's own, and never another person's; addresses change hands."""
    email: Mapped[str] = mapped_column(server_default=text("''"))
    """As the provider had it when they were bound: to be recognised by, nothing more."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class PasswordReset(TenantOwned, Base):
    """Leave to choose another password, known by the HMAC of a token."""

    __tablename__ = "password_resets"
    __table_args__ = (
        ForeignKeyConstraint(["user_id", "tenant_id"], ["users.id", "users.tenant_id"]),
        CheckConstraint("length(digest) = 32", name="digest_length"),
        Index(None, "tenant_id", "user_id"),
    )

    digest: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)
    tenant_id: Mapped[str]
    user_id: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime]


class ProjectMember(TenantOwned, Base):
    __tablename__ = "project_members"
    __table_args__ = (
        ForeignKeyConstraint(["project_id", "tenant_id"], ["projects.id", "projects.tenant_id"]),
        ForeignKeyConstraint(["user_id", "tenant_id"], ["users.id", "users.tenant_id"]),
        CheckConstraint("role IN ('owner', 'member')", name="role_known"),
        Index(None, "tenant_id", "user_id"),
    )

    project_id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    role: Mapped[str]
    added_at: Mapped[datetime] = mapped_column(server_default=func.now())


class ServiceAccount(TenantOwned, Base):
    """A program that works in a project, with keys that no person's leaving takes away."""

    __tablename__ = "service_accounts"
    __table_args__ = (
        ForeignKeyConstraint(["project_id", "tenant_id"], ["projects.id", "projects.tenant_id"]),
        UniqueConstraint("id", "tenant_id"),
        CheckConstraint("role IN ('owner', 'member')", name="role_known"),
        Index(None, "tenant_id", "project_id", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    project_id: Mapped[str]
    name: Mapped[str]
    role: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    deleted_at: Mapped[datetime | None]


class Invite(TenantOwned, Base):
    """Somebody who may become a user, known by an address and the HMAC of a token."""

    __tablename__ = "invites"
    __table_args__ = (
        CheckConstraint("role IN ('owner', 'admin', 'developer', 'billing', 'viewer')", name="role_known"),
        CheckConstraint("email = lower(email)", name="email_lower"),
        CheckConstraint("length(digest) = 32", name="digest_length"),
        Index(None, "tenant_id", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    email: Mapped[str]
    role: Mapped[str]
    projects: Mapped[dict[str, str]] = mapped_column(JSONB, server_default=text("'{}'"))
    """Roles in projects, by their ids, that come with the acceptance."""
    digest: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime]
    accepted_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]

    def __repr__(self) -> str:
        return f"Invite({self.id!r})"


class ApiKey(TenantOwned, Base):
    """A key, known by the HMAC of its text. Never deleted: usage names it."""

    __tablename__ = "api_keys"
    __table_args__ = (
        ForeignKeyConstraint(["project_id", "tenant_id"], ["projects.id", "projects.tenant_id"]),
        ForeignKeyConstraint(["user_id", "tenant_id"], ["users.id", "users.tenant_id"]),
        ForeignKeyConstraint(
            ["service_account_id", "tenant_id"], ["service_accounts.id", "service_accounts.tenant_id"]
        ),
        CheckConstraint("kind IN ('inference', 'admin')", name="kind_known"),
        CheckConstraint("(kind = 'admin') = (project_id IS NULL)", name="project_of_inference"),
        CheckConstraint("num_nonnulls(user_id, service_account_id) <= 1", name="one_owner"),
        CheckConstraint("length(digest) = 32", name="digest_length"),
        Index(None, "tenant_id", "id"),
        Index(None, "project_id"),
        Index(None, "user_id"),
        Index(None, "service_account_id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    project_id: Mapped[str | None]
    """None for an admin key alone: it runs the whole account."""
    user_id: Mapped[str | None]
    service_account_id: Mapped[str | None]
    """Whose it is, if anybody's: with them it ends."""
    digest: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    prefix: Mapped[str]
    name: Mapped[str]
    kind: Mapped[str]
    scopes: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default=text("'{}'"))
    """Empty: everything its kind may do."""
    models: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default=text("'{}'"))
    """See `TenantContext.may_use`. Empty: all."""
    networks: Mapped[list[IPv4Network | IPv6Network]] = mapped_column(
        ARRAY(CIDR), server_default=text("'{}'")
    )
    """Where it may be used from. Empty: anywhere."""
    origins: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default=text("'{}'"))
    """Web origins whose pages may use it. Empty: no page may."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    rotated_at: Mapped[datetime | None]
    replaced_by: Mapped[str | None] = mapped_column(ForeignKey("api_keys.id"))
    """The key that a rotation made: this one works on until `expires_at`."""
    last_used_at: Mapped[datetime | None]
    """Kept to the minute."""

    def __repr__(self) -> str:
        return f"ApiKey({self.id!r}, {self.prefix!r})"
