"""Defines the rows of tenants, plans, projects, users and API keys. The audit log and limits have their
own.
"""

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
"""Id of the default plan. A migration creates its row."""
OPERATOR_TENANT = "operator"
"""Id of the tenant that stands for the service; its users are the operators. A migration creates its row;
lists of tenants leave it out.
"""


class Plan(Base):
    """A plan: quotas, terms and fees of the tenants on it."""

    __tablename__ = "plans"
    __table_args__ = (
        CheckConstraint("monthly_fee >= 0 AND included_usage >= 0", name="fees_sane"),
        CheckConstraint("batch_price_percent BETWEEN 0 AND 10000", name="batch_price_sane"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    max_adapters: Mapped[int] = mapped_column(Integer, server_default=text("100"))
    max_file_bytes: Mapped[int] = mapped_column(BigInteger, server_default=text("2147483648"))
    """Largest uploaded file."""
    pinned_adapters: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    """Number of active adapters kept in the engine's memory even while unused."""
    gate: Mapped[dict[str, Any]] = mapped_column(JSONB, server_default=text("'{}'"))
    """Calibration thresholds that differ from the defaults."""
    terms: Mapped[dict[str, Any]] = mapped_column(JSONB, server_default=text("'{}'"))
    """By service tier, the terms that differ from the defaults: see `tenants.tier_terms`."""
    limits: Mapped[dict[str, int]] = mapped_column(JSONB, server_default=text("'{}'"))
    """Limits of every tenant on the plan: amounts by metric."""
    monthly_fee: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    """Micro-USD per month, in addition to usage."""
    included_usage: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    """Micro-USD of usage per month that the fee covers."""
    batch_price_percent: Mapped[int] = mapped_column(Integer, server_default=text("50"))
    """Percentage of the price that requests of batches pay."""
    response_days: Mapped[int] = mapped_column(Integer, server_default=text("30"))
    """Days for which stored responses and conversations are kept."""
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
    """If set, its keys and users are refused."""
    billing_state: Mapped[str] = mapped_column(server_default=text("'active'"))
    """Payment state, which billing maintains. `suspended`: its inference keys are refused."""
    second_factor_required: Mapped[bool] = mapped_column(server_default=text("false"))
    """If set, users without a second factor can do nothing but enrol one."""
    stores_nothing: Mapped[bool] = mapped_column(server_default=text("false"))
    """If set, no response and no conversation is stored."""
    signed_adapters_only: Mapped[bool] = mapped_column(server_default=text("false"))
    """If set, uploaded adapters must be signed by one of the organization's keys."""


class Project(TenantOwned, Base):
    """A project, with its own keys, members, limits and usage. Never deleted, because usage refers to it."""

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
    """Whether it was created with its tenant and receives keys without a project."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    archived_at: Mapped[datetime | None]
    """If set, its keys are refused."""
    models: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default=text("'{}'"))
    """Model names that its keys can use, as in a key's list; with `models_denied`, those they cannot use.
    Empty: no such rule.
    """
    models_denied: Mapped[bool] = mapped_column(server_default=text("false"))
    service_tiers: Mapped[list[str] | None] = mapped_column(ARRAY(Text))
    """The plan's service tiers that its keys can request besides `default`. None: all of them."""
    auto_tier: Mapped[str | None]
    """The service tier that `auto` stands for. None: the plan's best."""


class User(TenantOwned, Base):
    """A user of the console."""

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
    """None: the user signs in with an external identity only."""
    role: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    disabled_at: Mapped[datetime | None]
    removed_at: Mapped[datetime | None]
    """If set, no longer a member. The row stays, because other rows refer to it."""
    sessions_from: Mapped[datetime | None]
    """Console sessions that began before this time are invalid, because the password changed."""


class SecondFactor(TenantOwned, Base):
    """A user's TOTP secret, shared with their authenticator app, and recovery codes."""

    __tablename__ = "second_factors"
    __table_args__ = (ForeignKeyConstraint(["user_id", "tenant_id"], ["users.id", "users.tenant_id"]),)

    user_id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    secret: Mapped[bytes] = mapped_column(LargeBinary)
    """Encrypted under the server's secret, not hashed: codes are computed from the secret itself."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    confirmed_at: Mapped[datetime | None]
    """None until the user has confirmed the enrolment with a code. Sign-in requires no code until then."""
    last_step: Mapped[int | None] = mapped_column(BigInteger)
    """TOTP time step (30 s) of the last code used: codes of this step or earlier ones are refused."""
    recovery: Mapped[list[bytes]] = mapped_column(ARRAY(LargeBinary), server_default=text("'{}'"))
    """HMACs of the recovery codes, each of which is good once."""
    secret_id: Mapped[str | None]
    """Id of the key secret that the HMACs were made with; see `tenants.key_secrets`. None: not known."""

    def __repr__(self) -> str:
        return f"SecondFactor({self.user_id!r})"


class Identity(TenantOwned, Base):
    """Links a subject of an external identity provider to a user."""

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
    """The provider's permanent id of the user. Email addresses can change owners."""
    email: Mapped[str] = mapped_column(server_default=text("''"))
    """The provider's email address at the time of linking, for display only."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class PasswordReset(TenantOwned, Base):
    """A password reset, stored under the HMAC of its token."""

    __tablename__ = "password_resets"
    __table_args__ = (
        ForeignKeyConstraint(["user_id", "tenant_id"], ["users.id", "users.tenant_id"]),
        CheckConstraint("length(digest) = 32", name="digest_length"),
        Index(None, "tenant_id", "user_id"),
    )

    digest: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)
    secret_id: Mapped[str | None]
    """Id of the key secret that the digest was made with; see `tenants.key_secrets`. None: not known."""
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
    """A non-human member of a project. Its keys stay valid when users leave."""

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
    """An invitation of an email address, stored with the HMAC of its token."""

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
    """Project roles, by project id, that the user gets on acceptance."""
    digest: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    secret_id: Mapped[str | None]
    """Id of the key secret that the digest was made with; see `tenants.key_secrets`. None: not known."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime]
    accepted_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]

    def __repr__(self) -> str:
        return f"Invite({self.id!r})"


class ApiKey(TenantOwned, Base):
    """An API key, stored as its HMAC. Never deleted, because usage refers to it."""

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
        Index(None, "federation_rule_id", postgresql_where=text("federation_rule_id IS NOT NULL")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    project_id: Mapped[str | None]
    """None for admin keys, which are for the whole organization."""
    user_id: Mapped[str | None]
    service_account_id: Mapped[str | None]
    """The user or service account it belongs to, if any; it is revoked with them."""
    digest: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    secret_id: Mapped[str | None]
    """Id of the key secret that the digest was made with; see `tenants.key_secrets`. None: not known."""
    prefix: Mapped[str]
    name: Mapped[str]
    kind: Mapped[str]
    scopes: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default=text("'{}'"))
    """Empty: all scopes of its kind."""
    models: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default=text("'{}'"))
    """See `TenantContext.may_use`. Empty: all."""
    networks: Mapped[list[IPv4Network | IPv6Network]] = mapped_column(
        ARRAY(CIDR), server_default=text("'{}'")
    )
    """Networks it can be used from. Empty: any."""
    origins: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default=text("'{}'"))
    """Web origins whose pages can use it. Empty: none."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    rotated_at: Mapped[datetime | None]
    replaced_by: Mapped[str | None] = mapped_column(ForeignKey("api_keys.id"))
    """The key that replaced this one in a rotation; this one keeps working until `expires_at`."""
    last_used_at: Mapped[datetime | None]
    """Updated at most once a minute."""
    federation_rule_id: Mapped[str | None]
    """The rule by which a token of another issuer was exchanged for it. Lists leave it out once it has
    expired.
    """

    def __repr__(self) -> str:
        return f"ApiKey({self.id!r}, {self.prefix!r})"
