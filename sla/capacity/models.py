"""Defines the table of capacity samples. They concern the service, not one tenant."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, Double, Integer
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base


class CapacitySample(Base):
    """What was used of one resource in an hour."""

    __tablename__ = "capacity_samples"
    __table_args__ = (CheckConstraint("num_samples > 0", name="has_samples"),)

    hour: Mapped[datetime] = mapped_column(primary_key=True)
    subject: Mapped[str] = mapped_column(primary_key=True)
    """A base model's name; empty for what all share."""
    resource: Mapped[str] = mapped_column(primary_key=True)
    """See `sla.capacity.resources`."""
    num_samples: Mapped[int] = mapped_column(Integer)
    total: Mapped[float] = mapped_column(Double)
    """Sum of the samples: the mean is `total / num_samples`."""
    peak: Mapped[float] = mapped_column(Double)
    limit: Mapped[float | None] = mapped_column(Double)
    """What there was of it, when it was last sampled; None: not known."""
