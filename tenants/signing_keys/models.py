"""Defines the table of organizations' public keys."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, func, text
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base
from db.repository import TenantOwned


class TenantSigningKey(TenantOwned, Base):
    """A public key whose signatures on uploaded adapters the organization accepts."""

    __tablename__ = "signing_keys"
    __table_args__ = (
        Index(
            "uq_signing_keys_live",
            "tenant_id",
            "key_id",
            unique=True,
            postgresql_where=text("revoked_at IS NULL"),
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`signkey_...`."""
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str]
    key_id: Mapped[str]
    """SHA-256 of the key in PEM, by which signatures name it."""
    pem: Mapped[str]
    created_by: Mapped[str | None]
    """Id of the key or user that registered it."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    revoked_at: Mapped[datetime | None]
