"""What the books were compared with, and where they differed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

TEXT, INSTANT, COUNT = sa.Text(), sa.DateTime(timezone=True), sa.BigInteger()
NOW, ZERO = sa.text("now()"), sa.text("0")


def upgrade() -> None:
    op.create_table(
        "reconciliations",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("started_at", INSTANT, nullable=False),
        sa.Column("ended_at", INSTANT, nullable=False),
        sa.Column("span_start", INSTANT, nullable=False),
        sa.Column("span_end", INSTANT, nullable=False),
        sa.Column("outcomes", JSONB, nullable=False),
        sa.Column("num_differences", COUNT, nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_reconciliations"),
    )
    op.create_index("ix_reconciliations_started_at", "reconciliations", ["started_at"])
    op.create_table(
        "reconciliation_differences",
        sa.Column("reconciliation_id", TEXT, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("check_name", TEXT, nullable=False),
        sa.Column("what", TEXT, nullable=False),
        sa.Column("at", INSTANT),
        sa.Column("expected", COUNT, server_default=ZERO, nullable=False),
        sa.Column("found", COUNT, server_default=ZERO, nullable=False),
        sa.PrimaryKeyConstraint("reconciliation_id", "number", name="pk_reconciliation_differences"),
        sa.ForeignKeyConstraint(
            ["reconciliation_id"],
            ["reconciliations.id"],
            name="fk_reconciliation_differences_reconciliation_id_reconciliations",
        ),
    )
    op.execute("SELECT secure_tenant_rows('reconciliation_differences')")


def downgrade() -> None:
    op.drop_table("reconciliation_differences")
    op.drop_table("reconciliations")
