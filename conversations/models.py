"""Defines the tables of stored responses, background events, conversations and their items.

Columns called `sealed` are encrypted by `conversations.sealing` for their tenant, table and row.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base
from db.repository import TenantOwned

UNFINISHED = ("queued", "in_progress")
"""Statuses of background responses that have not ended."""


class Conversation(TenantOwned, Base):
    """A conversation of one project. It expires when nothing was added to it for the plan's days."""

    __tablename__ = "conversations"
    __table_args__ = (
        UniqueConstraint("id", "tenant_id"),
        ForeignKeyConstraint(["project_id", "tenant_id"], ["projects.id", "projects.tenant_id"]),
        Index(None, "expires_at"),
        Index(None, "tenant_id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    project_id: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime]
    sealed_metadata: Mapped[bytes] = mapped_column(LargeBinary)
    num_items: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    num_bytes: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    last_position: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    """Of the item that was added last, also when it was deleted since."""
    used_at: Mapped[datetime | None]
    """When an item was last added; a trigger keeps it. None: not since there is the column."""
    locked_by: Mapped[str | None]
    """The response that is generated for the conversation."""
    locked_until: Mapped[datetime | None]


class ConversationItem(TenantOwned, Base):
    """An item of a conversation."""

    __tablename__ = "conversation_items"
    __table_args__ = (
        ForeignKeyConstraint(
            ["conversation_id", "tenant_id"],
            ["conversations.id", "conversations.tenant_id"],
            ondelete="CASCADE",
        ),
        Index("uq_conversation_items_conversation_id_position", "conversation_id", "position", unique=True),
        Index(None, "tenant_id", "id"),
    )

    conversation_id: Mapped[str] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    position: Mapped[int] = mapped_column(BigInteger)
    sealed: Mapped[bytes] = mapped_column(LargeBinary)


class StoredResponse(TenantOwned, Base):
    """A response of one project with the items of its own turn."""

    __tablename__ = "stored_responses"
    __table_args__ = (
        UniqueConstraint("id", "tenant_id"),
        ForeignKeyConstraint(["project_id", "tenant_id"], ["projects.id", "projects.tenant_id"]),
        CheckConstraint(
            "status IN ('queued', 'in_progress', 'completed', 'incomplete', 'failed', 'cancelled')",
            name="status_known",
        ),
        Index(None, "expires_at"),
        Index(None, "tenant_id"),
        Index("ix_stored_responses_item_ids", "item_ids", postgresql_using="gin"),
        Index(
            "ix_stored_responses_unfinished",
            "id",
            postgresql_where=text("status IN ('queued', 'in_progress')"),
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    project_id: Mapped[str]
    key_id: Mapped[str]
    previous_id: Mapped[str | None]
    """The response that it continues."""
    conversation_id: Mapped[str | None]
    status: Mapped[str]
    is_background: Mapped[bool] = mapped_column(server_default=text("false"))
    submitted_at: Mapped[datetime]
    """As the ledger has it."""
    expires_at: Mapped[datetime]
    sealed_body: Mapped[bytes] = mapped_column(LargeBinary)
    """The response object without its output."""
    sealed_input: Mapped[bytes] = mapped_column(LargeBinary)
    """The items that the request sent."""
    sealed_output: Mapped[bytes] = mapped_column(LargeBinary)
    """The items that the model wrote."""
    sealed_request: Mapped[bytes | None] = mapped_column(LargeBinary)
    """The request of an unfinished background response."""
    num_items: Mapped[int] = mapped_column(Integer)
    item_ids: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default=text("'{}'"))
    """Ids of the items of input and output."""
    fence: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    """Fencing token of a background response: incremented by every claim and by its cancellation."""
    lease_owner: Mapped[str | None]
    lease_until: Mapped[datetime | None]


class ResponseEvents(TenantOwned, Base):
    """Server-sent events of a background response that were written together."""

    __tablename__ = "response_events"
    __table_args__ = (
        ForeignKeyConstraint(
            ["response_id", "tenant_id"],
            ["stored_responses.id", "stored_responses.tenant_id"],
            ondelete="CASCADE",
        ),
        Index(None, "tenant_id"),
    )

    response_id: Mapped[str] = mapped_column(primary_key=True)
    sequence: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    """Sequence number of the last event in the row."""
    tenant_id: Mapped[str]
    fence: Mapped[int] = mapped_column(BigInteger)
    """Of the attempt that wrote them."""
    sealed: Mapped[bytes] = mapped_column(LargeBinary)
