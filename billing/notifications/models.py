"""Defines the tables of notifications: webhook endpoints, notifications, and their deliveries."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    ARRAY,
    CheckConstraint,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base
from db.repository import TenantOwned


class WebhookEndpoint(TenantOwned, Base):
    """A tenant's URL for webhooks, and the event types it gets."""

    __tablename__ = "webhook_endpoints"
    __table_args__ = (
        CheckConstraint("length(secret) = 32", name="secret_length"),
        Index(None, "tenant_id", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str]
    url: Mapped[str]
    event_types: Mapped[list[str]] = mapped_column(ARRAY(Text))
    secret: Mapped[bytes] = mapped_column(LargeBinary)
    """The signing secret. It is stored as it is, because a digest could not sign."""
    previous_secret: Mapped[bytes | None] = mapped_column(LargeBinary)
    previous_until: Mapped[datetime | None]
    """Until then deliveries are signed with the previous secret as well."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())
    disabled_at: Mapped[datetime | None]
    """Set when deliveries failed for days: nothing is sent until it is changed or a test succeeds."""

    def __repr__(self) -> str:
        return f"WebhookEndpoint({self.id!r})"


class Notification(TenantOwned, Base):
    """An event that a tenant is notified of, once."""

    __tablename__ = "notifications"
    __table_args__ = (UniqueConstraint("tenant_id", "key"), Index(None, "created_at"))

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    type: Mapped[str]
    key: Mapped[str]
    """Identifies the event, so that a repeated one is stored once."""
    data: Mapped[dict[str, Any]] = mapped_column(JSONB)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Delivery(TenantOwned, Base):
    """A notification on its way to one endpoint or one mail address."""

    __tablename__ = "deliveries"
    __table_args__ = (
        CheckConstraint("num_nonnulls(endpoint_id, recipient) = 1", name="one_destination"),
        CheckConstraint("state IN ('pending', 'delivered', 'failed')", name="state_known"),
        Index("ix_deliveries_due", "next_at", postgresql_where=text("state = 'pending'")),
        Index(None, "tenant_id", "endpoint_id", "id"),
        Index(None, "notification_id"),
        Index(None, "endpoint_id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    notification_id: Mapped[str] = mapped_column(ForeignKey("notifications.id", ondelete="CASCADE"))
    endpoint_id: Mapped[str | None] = mapped_column(ForeignKey("webhook_endpoints.id", ondelete="CASCADE"))
    recipient: Mapped[str | None]
    """An e-mail address."""
    state: Mapped[str] = mapped_column(server_default=text("'pending'"))
    attempts: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    next_at: Mapped[datetime] = mapped_column(server_default=func.now())
    """When it is tried next. An attempt first moves this into the future, which is its lease."""
    give_up_at: Mapped[datetime]
    status_code: Mapped[int | None] = mapped_column(Integer)
    """The endpoint's last HTTP status."""
    error: Mapped[str | None]
    """Why the last attempt failed."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    ended_at: Mapped[datetime | None]
