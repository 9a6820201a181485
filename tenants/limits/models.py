"""Defines the rows of limits that are set for a tenant in addition to its plan's."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, func, text
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base
from db.repository import TenantOwned
from tenants.limits.kinds import Metric

METRICS_SQL = ", ".join(f"'{metric}'" for metric in Metric)


class LimitRow(TenantOwned, Base):
    """A limit of a tenant, a project or a key. One for the tenant replaces the plan's limit of the same
    metric.
    """

    __tablename__ = "limits"
    __table_args__ = (
        CheckConstraint("scope IN ('tenant', 'project', 'key')", name="scope_known"),
        CheckConstraint("scope <> 'tenant' OR scope_id = tenant_id", name="scope_of_tenant"),
        CheckConstraint(f"metric IN ({METRICS_SQL})", name="metric_known"),
        CheckConstraint("amount >= 0", name="amount_counts"),
        CheckConstraint(
            "metric NOT IN ('prepaid_balance', 'adapters', 'storage_bytes', 'batch_lines') "
            "OR (scope = 'tenant' AND model = '')",
            name="stored_by_tenants",
        ),
    )

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    scope: Mapped[str] = mapped_column(primary_key=True)
    scope_id: Mapped[str] = mapped_column(primary_key=True)
    """Id of the tenant, a project or a key. Not a foreign key: `scope` decides which table it refers to."""
    model: Mapped[str] = mapped_column(primary_key=True, server_default=text("''"))
    """See `Limit.model`."""
    metric: Mapped[str] = mapped_column(primary_key=True)
    amount: Mapped[int] = mapped_column(BigInteger)
    counted_as: Mapped[str | None]
    """For a key that replaces another: the first key's id, whose count continues."""
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())
