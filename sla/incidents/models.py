"""Defines the tables of incidents, planned maintenance and their notes. They concern the service, not one
tenant.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ARRAY, CheckConstraint, ForeignKey, Index, Text, func, text
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base


class Incident(Base):
    __tablename__ = "incidents"
    __table_args__ = (
        CheckConstraint("severity IN ('minor', 'major', 'critical')", name="severity_known"),
        CheckConstraint("ended_at >= began_at", name="ends_later"),
        CheckConstraint("planned_until > began_at", name="planned_later"),
        Index("ix_incidents_open", "began_at", postgresql_where=text("ended_at IS NULL")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`inc_...`."""
    title: Mapped[str]
    severity: Mapped[str]
    is_public: Mapped[bool] = mapped_column(server_default=text("false"))
    """Whether tenants see it on every page while it is open."""
    began_at: Mapped[datetime]
    """In the future for maintenance that is announced."""
    planned_until: Mapped[datetime | None]
    """When maintenance is to end; None for an incident."""
    components: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default=text("'{}'"))
    """Of the status page (`sla.status.components`). Empty: none of an incident, all of maintenance."""
    ended_at: Mapped[datetime | None]
    opened_by: Mapped[str]
    """The operator's e-mail address."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class IncidentNote(Base):
    """A note on an incident. Rows are only added."""

    __tablename__ = "incident_notes"
    __table_args__ = (Index(None, "incident_id", "id"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    incident_id: Mapped[str] = mapped_column(ForeignKey("incidents.id"))
    at: Mapped[datetime] = mapped_column(server_default=func.now())
    author: Mapped[str]
    """The operator's e-mail address."""
    body: Mapped[str]
    is_public: Mapped[bool] = mapped_column(server_default=text("false"))
    """Whether tenants see it, if they see the incident."""
