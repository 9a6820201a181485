"""Defines the table of the metadata that clients gave their requests."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base
from db.repository import TenantOwned


class StoredMetadata(TenantOwned, Base):
    """The metadata of one request. Requests without any have no row."""

    __tablename__ = "request_metadata"

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    submitted_at: Mapped[datetime] = mapped_column(primary_key=True)
    """As the request's id says it, to the microsecond: rows are added where the index ends."""
    request_id: Mapped[str] = mapped_column(primary_key=True)
    """The id of the response; a list of prompts has one row."""
    sealed: Mapped[bytes] = mapped_column(LargeBinary)
    """An encrypted `billing.request_metadata.content.RequestMetadata`."""
