"""Rows of limits that were set for a tenant, beside those of its plan."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, func, text
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base
from db.repository import TenantOwned
from tenants.limits.kinds import Metric

METRICS_SQL = ", ".join(f"'{metric}'" for metric in Metric)


class LimitRow(TenantOwned, Base):
    """A limit of a tenant, of a project or of a key: replaces the plan's of the same name, or adds to it."""

    __tablename__ = "limits"
    __table_args__ = (
        CheckConstraint("scope IN ('tenant', 'project', 'key')", name="scope_known"),
        CheckConstraint("scope <> 'tenant' OR scope_id = tenant_id", name="scope_of_tenant"),
        CheckConstraint(f"metric IN ({METRICS_SQL})", name="metric_known"),
        CheckConstraint("amount >= 0", name="amount_counts"),
        CheckConstraint(
            "metric NOT IN ('prepaid_balance', 'adapters', 'storage_bytes') "
            "OR (scope = 'tenant' AND model = '')",
            name="stored_by_tenants",
        ),
    )

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    scope: Mapped[str] = mapped_column(primary_key=True)
    scope_id: Mapped[str] = mapped_column(primary_key=True)
    """Of the tenant itself, a project or a key. Not a foreign key: which table it names, `scope` says."""
    model: Mapped[str] = mapped_column(primary_key=True, server_default=text("''"))
    """As `Limit.model`."""
    metric: Mapped[str] = mapped_column(primary_key=True)
    amount: Mapped[int] = mapped_column(BigInteger)
    counted_as: Mapped[str | None]
    """Of a key that replaces another: the first one's id, whose count goes on."""
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())
