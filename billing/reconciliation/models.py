"""What the books were compared with, and where they differed. Rows are only ever added."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, func, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base
from db.repository import TenantOwned


class Reconciliation(Base):
    """One comparison of everything, over a stretch of time."""

    __tablename__ = "reconciliations"
    __table_args__ = (Index(None, "started_at"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    """`rcn_...`."""
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime]
    span_start: Mapped[datetime]
    span_end: Mapped[datetime]
    outcomes: Mapped[dict[str, Any]] = mapped_column(JSONB)
    """By check: how many differences, and why it was not made where it was not."""
    num_differences: Mapped[int] = mapped_column(BigInteger)
    """All that were found; of very many the first are kept."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class ReconciliationDifference(TenantOwned, Base):
    """Two books that do not say the same of one thing. Of no tenant: `tenant_id` is empty."""

    __tablename__ = "reconciliation_differences"

    reconciliation_id: Mapped[str] = mapped_column(ForeignKey("reconciliations.id"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    tenant_id: Mapped[str]
    check_name: Mapped[str]
    what: Mapped[str]
    at: Mapped[datetime | None]
    """The moment, minute, hour or day it is of."""
    expected: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    found: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
