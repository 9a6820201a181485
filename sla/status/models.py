"""Defines the tables of the status page. They concern the service, not one tenant."""

from __future__ import annotations

from datetime import date, datetime

from sqlalchemy import CheckConstraint, Date, Integer, text
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base

_ZERO = text("0")


class StatusSample(Base):
    """The state of a component in a minute. Kept for days: the sums by day are what is shown."""

    __tablename__ = "status_samples"
    __table_args__ = (
        CheckConstraint("state IN ('operational', 'degraded', 'down', 'maintenance')", name="state_known"),
    )

    minute: Mapped[datetime] = mapped_column(primary_key=True)
    component: Mapped[str] = mapped_column(primary_key=True)
    """See `sla.status.components`."""
    state: Mapped[str]


class StatusDay(Base):
    """Minutes of a UTC day that a component was in each state. A minute without a sample is in none."""

    __tablename__ = "status_days"

    day: Mapped[date] = mapped_column(Date, primary_key=True)
    component: Mapped[str] = mapped_column(primary_key=True)
    operational: Mapped[int] = mapped_column(Integer, server_default=_ZERO)
    degraded: Mapped[int] = mapped_column(Integer, server_default=_ZERO)
    down: Mapped[int] = mapped_column(Integer, server_default=_ZERO)
    maintenance: Mapped[int] = mapped_column(Integer, server_default=_ZERO)
