"""Defines the rows of workload identity: trusted issuers, and the rules of what their tokens stand for."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    ARRAY,
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base
from db.repository import TenantOwned


class WorkloadIdentityProvider(TenantOwned, Base):
    """An issuer of OpenID Connect tokens that a tenant trusts."""

    __tablename__ = "workload_identity_providers"
    __table_args__ = (
        UniqueConstraint("id", "tenant_id"),
        CheckConstraint("token_seconds BETWEEN 60 AND 43200", name="token_seconds_sane"),
        Index(None, "tenant_id", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str]
    description: Mapped[str | None]
    issuer: Mapped[str]
    """`iss` of its tokens."""
    audience: Mapped[str]
    """A value that `aud` of its tokens must have."""
    discovery_url: Mapped[str | None]
    """Where the issuer's configuration is. None: at the issuer's well-known path."""
    jwks: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    """The issuer's public keys, uploaded. None: they are published."""
    token_seconds: Mapped[int] = mapped_column(Integer, server_default=text("3600"))
    """Lifetime of the keys that its tokens are exchanged for."""
    is_single_use: Mapped[bool] = mapped_column(server_default=text("true"))
    """Whether each of its tokens can be exchanged once."""
    is_enabled: Mapped[bool] = mapped_column(server_default=text("true"))
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())


class FederationRule(TenantOwned, Base):
    """Which tokens of a provider are exchanged for keys of a service account."""

    __tablename__ = "federation_rules"
    __table_args__ = (
        ForeignKeyConstraint(
            ["provider_id", "tenant_id"],
            ["workload_identity_providers.id", "workload_identity_providers.tenant_id"],
            name="fk_federation_rules_provider",
            ondelete="CASCADE",
        ),
        ForeignKeyConstraint(
            ["service_account_id", "tenant_id"],
            ["service_accounts.id", "service_accounts.tenant_id"],
            name="fk_federation_rules_service_account",
        ),
        Index(None, "tenant_id", "id"),
        Index(None, "provider_id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    provider_id: Mapped[str]
    project_id: Mapped[str]
    service_account_id: Mapped[str]
    name: Mapped[str | None]
    description: Mapped[str | None]
    matchers: Mapped[dict[str, Any]] = mapped_column(JSONB)
    """By claim, what it must be: see `tenants.workload_identity.matching`."""
    scopes: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default=text("'{}'"))
    """Scopes of the keys. Empty: all scopes of inference keys."""
    is_enabled: Mapped[bool] = mapped_column(server_default=text("true"))
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())
