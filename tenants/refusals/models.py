"""Defines the tables of refused requests: one row per call, partitioned by day, and counts by hour.

Neither is money: rows are kept for a month and then dropped with their partition.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, Index, Integer
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base
from db.repository import TenantOwned


class RefusedCall(TenantOwned, Base):
    """A call that was answered with a status of 400 or above. Texts without a value are empty."""

    __tablename__ = "refused_requests"
    __table_args__ = (
        Index(None, "tenant_id", "request_id"),
        Index(None, "tenant_id", "code", "at"),
        Index(None, "tenant_id", "key_id", "at"),
        Index(None, "tenant_id", "model", "at"),
        {"postgresql_partition_by": "RANGE (at)"},
    )

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[datetime] = mapped_column(primary_key=True)
    """When the error was returned."""
    request_id: Mapped[str] = mapped_column(primary_key=True)
    """The response's `x-request-id`, which clients may choose and repeat."""
    key_id: Mapped[str]
    """The API key, or in the console's playground the user."""
    project_id: Mapped[str]
    user_id: Mapped[str]
    method: Mapped[str]
    route: Mapped[str]
    """The route's template, such as `/v1/adapters/{adapter_id}`; empty if no route matched."""
    path: Mapped[str]
    """The path without its query."""
    model: Mapped[str]
    """The model's name as the request had it."""
    service_tier: Mapped[str]
    """The service tier as the request had it."""
    status: Mapped[int] = mapped_column(Integer)
    code: Mapped[str]
    message: Mapped[str]
    generation_id: Mapped[str]
    """The id that the ledger has the request under, if it was refused after it had been validated."""


class RefusedHour(TenantOwned, Base):
    """How many calls one API process refused in an hour, by status and code."""

    __tablename__ = "refused_hours"
    __table_args__ = (Index(None, "hour"),)

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    hour: Mapped[datetime] = mapped_column(primary_key=True)
    source: Mapped[str] = mapped_column(primary_key=True)
    """The API process, by a name that it drew when it started."""
    status: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    code: Mapped[str] = mapped_column(primary_key=True)
    refused: Mapped[int] = mapped_column(BigInteger)
    unlisted: Mapped[int] = mapped_column(BigInteger)
    """Those of them that have no row, because there were too many in a minute."""
