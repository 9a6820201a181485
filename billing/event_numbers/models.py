"""The numbers of usage events that the ledger has taken in, and how many engines have issued."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, Index
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base


class UsageEventRange(Base):
    """Numbers of one incarnation without a gap. Ranges that touch are made one."""

    __tablename__ = "usage_event_ranges"
    __table_args__ = (Index(None, "noted_at"),)

    engine_id: Mapped[str] = mapped_column(primary_key=True)
    incarnation: Mapped[str] = mapped_column(primary_key=True)
    first_number: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    last_number: Mapped[int] = mapped_column(BigInteger)
    tokens_before: Mapped[int] = mapped_column(BigInteger)
    """Completion tokens in events with smaller numbers."""
    tokens_after: Mapped[int] = mapped_column(BigInteger)
    """Completion tokens in events up to and with the last."""
    noted_at: Mapped[datetime]
    """When the first of them came in."""


class EngineIncarnation(Base):
    """What an engine said it had issued when an incarnation of it ended."""

    __tablename__ = "engine_incarnations"
    __table_args__ = (Index(None, "ended_at"),)

    engine_id: Mapped[str] = mapped_column(primary_key=True)
    incarnation: Mapped[str] = mapped_column(primary_key=True)
    events: Mapped[int] = mapped_column(BigInteger)
    tokens: Mapped[int] = mapped_column(BigInteger)
    """Completion tokens in them."""
    ended_at: Mapped[datetime]
