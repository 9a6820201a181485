"""Defines the tables of usage event numbers: those in the ledger, and how many the engines have issued."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, Index
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base


class UsageEventRange(Base):
    """A range of an incarnation's event numbers without a gap. Adjacent ranges are merged."""

    __tablename__ = "usage_event_ranges"
    __table_args__ = (Index(None, "noted_at"),)

    engine_id: Mapped[str] = mapped_column(primary_key=True)
    incarnation: Mapped[str] = mapped_column(primary_key=True)
    first_number: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    last_number: Mapped[int] = mapped_column(BigInteger)
    tokens_before: Mapped[int] = mapped_column(BigInteger)
    """Completion tokens in events with smaller numbers."""
    tokens_after: Mapped[int] = mapped_column(BigInteger)
    """Completion tokens in events up to and including the last."""
    noted_at: Mapped[datetime]
    """When the first of these events arrived."""


class EngineIncarnation(Base):
    """How many events an engine issued in an incarnation that has ended, as it reported."""

    __tablename__ = "engine_incarnations"
    __table_args__ = (Index(None, "ended_at"),)

    engine_id: Mapped[str] = mapped_column(primary_key=True)
    incarnation: Mapped[str] = mapped_column(primary_key=True)
    events: Mapped[int] = mapped_column(BigInteger)
    tokens: Mapped[int] = mapped_column(BigInteger)
    """Completion tokens in these events."""
    ended_at: Mapped[datetime]
