"""Defines the tables of reconciliations and the differences they found. Rows are only added."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, func, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base
from db.repository import TenantOwned


class Reconciliation(Base):
    """One comparison of all books over a time range."""

    __tablename__ = "reconciliations"
    __table_args__ = (Index(None, "started_at"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    """`rcn_...`."""
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime]
    span_start: Mapped[datetime]
    span_end: Mapped[datetime]
    outcomes: Mapped[dict[str, Any]] = mapped_column(JSONB)
    """By check: the number of differences, and why it did not run if it did not."""
    num_differences: Mapped[int] = mapped_column(BigInteger)
    """All differences found; only the first 10 000 are stored as rows."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class ReconciliationDifference(TenantOwned, Base):
    """Two books that disagree on one thing. `tenant_id` is empty if it belongs to no tenant."""

    __tablename__ = "reconciliation_differences"

    reconciliation_id: Mapped[str] = mapped_column(ForeignKey("reconciliations.id"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    tenant_id: Mapped[str]
    check_name: Mapped[str]
    what: Mapped[str]
    at: Mapped[datetime | None]
    """The moment, minute, hour or day that differs."""
    expected: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    found: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
