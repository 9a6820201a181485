"""Defines the table of versions' signatures."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKeyConstraint, Index, Integer
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base
from db.repository import TenantOwned


class AdapterSignature(TenantOwned, Base):
    """The platform's signature over all files of a version. Replaced when the version is measured again, or
    the platform has another key; deleted with its version.
    """

    __tablename__ = "adapter_signatures"
    __table_args__ = (
        ForeignKeyConstraint(
            ["adapter_id", "version"],
            ["adapter_versions.adapter_id", "adapter_versions.version"],
            ondelete="CASCADE",
        ),
        ForeignKeyConstraint(["adapter_id", "tenant_id"], ["adapters.id", "adapters.tenant_id"]),
        Index(None, "checked_at"),
    )

    adapter_id: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    tenant_id: Mapped[str]
    key_id: Mapped[str]
    """Of the platform's key."""
    bundle: Mapped[str]
    """The content of `model.sig`."""
    report_key: Mapped[str | None]
    """The object of the calibration report that was signed."""
    checked_at: Mapped[datetime | None]
    """When all stored files were last compared with it."""
