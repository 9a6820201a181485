"""What each tenant was served like, by class and minute."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

TEXT, INSTANT, COUNT = sa.Text(), sa.DateTime(timezone=True), sa.BigInteger()

ENSURE_SLA = """
CREATE FUNCTION ensure_sla_partitions(first date, months integer) RETURNS integer
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT
RETURN ensure_month_partitions('sla_minutes', 'minute', first, months)
"""


def upgrade() -> None:
    counts = ("requests", "failed", "first_tokens", "first_tokens_in_time", "rated", "rated_fast")
    op.create_table(
        "sla_minutes",
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("service_tier", TEXT, nullable=False),
        sa.Column("minute", INSTANT, nullable=False),
        *(sa.Column(name, COUNT, nullable=False) for name in counts),
        sa.Column("first_token_histogram", ARRAY(COUNT), nullable=False),
        sa.Column("output_rate_histogram", ARRAY(COUNT), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "service_tier", "minute", name="pk_sla_minutes"),
        sa.CheckConstraint("failed BETWEEN 0 AND requests", name=op.f("ck_sla_minutes_counts_sane")),
        postgresql_partition_by="RANGE (minute)",
    )
    op.execute("CREATE TABLE sla_minutes_default PARTITION OF sla_minutes DEFAULT")
    for table in ("sla_minutes", "sla_minutes_default"):
        op.execute(f"SELECT secure_tenant_rows('{table}')")
    op.execute(ENSURE_SLA)
    op.execute("REVOKE EXECUTE ON FUNCTION ensure_sla_partitions FROM PUBLIC")
    op.execute("SELECT ensure_sla_partitions(CAST(now() AT TIME ZONE 'UTC' AS date), 3)")
    op.create_table(
        "sla_batches",
        sa.Column("source", TEXT, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("counted_at", INSTANT, server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("source", "number", name="pk_sla_batches"),
    )
    op.create_index("ix_sla_batches_counted_at", "sla_batches", ["counted_at"])


def downgrade() -> None:
    op.drop_table("sla_batches")
    op.execute("DROP FUNCTION ensure_sla_partitions")
    op.drop_table("sla_minutes")
