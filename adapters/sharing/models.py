"""Defines the tables of shared adapters: the handles of owners, and what they offer to whom."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base
from db.repository import TenantOwned
from tenants.share_terms import ShareTerms

_LIVE = text("state IN ('offered', 'active')")


class ShareState(StrEnum):
    OFFERED = "offered"
    """The other organization has not answered yet."""
    ACTIVE = "active"
    DECLINED = "declined"
    ENDED = "ended"


LIVE = (ShareState.OFFERED, ShareState.ACTIVE)


class SharingHandle(TenantOwned, Base):
    """What stands for an owner in the names of the adapters that it shares. Made once, never changed."""

    __tablename__ = "sharing_handles"
    __table_args__ = (UniqueConstraint("handle"),)

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    handle: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class AdapterShare(TenantOwned, Base):
    """An adapter that its owner offers to another organization. Its terms never change: other terms are
    another offer. Row-level security shows it to both organizations.
    """

    __tablename__ = "adapter_shares"
    __table_args__ = (
        ForeignKeyConstraint(["adapter_id", "tenant_id"], ["adapters.id", "adapters.tenant_id"]),
        CheckConstraint("state IN ('offered', 'active', 'declined', 'ended')", name="state_known"),
        CheckConstraint("recipient_id <> tenant_id", name="with_another"),
        CheckConstraint(
            "input_surcharge >= 0 AND output_surcharge >= 0 AND owner_percent BETWEEN 0 AND 100",
            name="terms_sane",
        ),
        CheckConstraint(
            "(state IN ('declined', 'ended')) = (ended_at IS NOT NULL)"
            " AND (state <> 'active' OR accepted_at IS NOT NULL)",
            name="times_of_state",
        ),
        Index(None, "tenant_id", "adapter_id", "id"),
        Index(None, "recipient_id", "id"),
        Index("uq_adapter_shares_live", "adapter_id", "recipient_id", unique=True, postgresql_where=_LIVE),
        Index(
            "uq_adapter_shares_live_name",
            "recipient_id",
            "base",
            "handle",
            "name",
            unique=True,
            postgresql_where=_LIVE,
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`shr_...`."""
    tenant_id: Mapped[str]
    """The owner."""
    adapter_id: Mapped[str]
    recipient_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    """The organization that it is offered to."""
    base: Mapped[str]
    handle: Mapped[str]
    name: Mapped[str]
    """The adapter's name when it was offered. The shared model keeps it if the owner renames the adapter."""
    state: Mapped[str] = mapped_column(server_default=text("'offered'"))
    input_surcharge: Mapped[int] = mapped_column(BigInteger)
    """Micro-USD per million tokens, as the next one."""
    output_surcharge: Mapped[int] = mapped_column(BigInteger)
    owner_percent: Mapped[int] = mapped_column(Integer)
    """The owner's part of the surcharge."""
    created_by: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    accepted_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    """When it was declined or ended."""
    ended_by: Mapped[str | None]
    """Id of the organization that declined or ended it."""

    @property
    def model(self) -> str:
        """The model's name for the organization that uses it."""
        return f"{self.base}:{self.handle}/{self.name}"

    @property
    def terms(self) -> ShareTerms:
        return ShareTerms(
            self.id, self.tenant_id, self.input_surcharge, self.output_surcharge, self.owner_percent
        )
