"""Messages to the task queue, decided on in a transaction: written with it, sent after it, never lost.

Owns the rows. A message may be sent twice (whoever sends it may die before it is marked), so tasks are
idempotent.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Identity, Index, func, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base


class OutboxMessage(Base):
    __tablename__ = "outbox"
    __table_args__ = (Index("ix_outbox_unsent", "id", postgresql_where=text("sent_at IS NULL")),)

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    task: Mapped[str]
    arguments: Mapped[dict[str, Any]] = mapped_column(JSONB)
    """Keyword arguments of the task."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    sent_at: Mapped[datetime | None]
