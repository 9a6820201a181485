"""Batches and their lines, files of batches, and what a plan says of batches.

Leaves the running release's queries as they are: it neither writes the new purposes nor reads the new tables.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None
expand_only = True

TEXT, INSTANT, BIG = sa.Text(), sa.DateTime(timezone=True), sa.BigInteger()
NOW, ZERO = sa.text("now()"), sa.text("0")
OPEN = "status IN ('validating', 'in_progress', 'finalizing', 'cancelling')"
METRICS = (
    "'requests_per_minute', 'tokens_per_minute', 'input_tokens_per_minute', 'output_tokens_per_minute', "
    "'concurrent_requests', 'requests_per_day', 'tokens_per_day', 'tokens_per_month', 'spend_per_month', "
    "'prepaid_balance', 'adapters', 'storage_bytes'"
)
OF_TENANTS = "'prepaid_balance', 'adapters', 'storage_bytes'"
PURPOSES = {"files": ("batch", "batch_output"), "uploads": ("batch",)}


def upgrade() -> None:
    _batches()
    _lines()
    for table in ("batches", "batch_lines"):
        op.execute(f"SELECT secure_tenant_rows('{table}')")
    for table, purposes in PURPOSES.items():
        _purposes(table, ("adapter", "calibration", *purposes))
    _metrics(", 'batch_lines'")
    op.add_column(
        "plans", sa.Column("batch_price_percent", sa.Integer(), server_default=sa.text("50"), nullable=False)
    )
    op.create_check_constraint(
        op.f("ck_plans_batch_price_sane"), "plans", "batch_price_percent BETWEEN 0 AND 10000"
    )


def downgrade() -> None:
    op.drop_column("plans", "batch_price_percent")
    op.execute("DELETE FROM limits WHERE metric = 'batch_lines'")
    op.execute("UPDATE plans SET limits = limits - 'batch_lines'")
    _metrics("")
    op.execute("DELETE FROM files WHERE purpose IN ('batch', 'batch_output')")
    op.execute("DELETE FROM uploads WHERE purpose = 'batch'")
    for table in PURPOSES:
        _purposes(table, ("adapter", "calibration"))
    op.drop_table("batch_lines")
    op.drop_table("batches")


def _batches() -> None:
    op.create_table(
        "batches",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        *(sa.Column(name, TEXT, nullable=False) for name in ("created_by", "endpoint", "status")),
        sa.Column("metadata", JSONB),
        sa.Column("input_file_id", TEXT, nullable=False),
        sa.Column("input_key", TEXT),
        sa.Column("input_size", BIG, nullable=False),
        sa.Column("output_expires_after", sa.Integer()),
        sa.Column("output_file_id", TEXT),
        sa.Column("error_file_id", TEXT),
        sa.Column("errors", JSONB),
        sa.Column("model", TEXT),
        *(
            sa.Column(name, sa.Integer(), server_default=ZERO, nullable=False)
            for name in ("total", "completed", "failed")
        ),
        *(
            sa.Column(name, BIG, server_default=ZERO, nullable=False)
            for name in ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "cost")
        ),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("expires_at", INSTANT, nullable=False),
        *(
            sa.Column(f"{name}_at", INSTANT)
            for name in (
                *("in_progress", "finalizing", "completed", "failed", "expired"),
                *("cancelling", "cancelled"),
            )
        ),
        sa.Column("fence", BIG, server_default=ZERO, nullable=False),
        sa.Column("lease_owner", TEXT),
        sa.Column("lease_until", INSTANT),
        sa.PrimaryKeyConstraint("id", name="pk_batches"),
        sa.UniqueConstraint("id", "tenant_id", name="uq_batches_id_tenant_id"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_batches_tenant_id_tenants"),
        sa.CheckConstraint(
            "status IN ('validating', 'failed', 'in_progress', 'finalizing', 'completed', 'expired', "
            "'cancelling', 'cancelled')",
            name=op.f("ck_batches_status_known"),
        ),
    )
    op.create_index("ix_batches_tenant_id_id", "batches", ["tenant_id", "id"])
    op.create_index("ix_batches_open", "batches", ["created_at"], postgresql_where=sa.text(OPEN))
    op.create_index(
        "ix_batches_input_key",
        "batches",
        ["input_key"],
        postgresql_where=sa.text("input_key IS NOT NULL"),
    )


def _lines() -> None:
    op.create_table(
        "batch_lines",
        sa.Column("batch_id", TEXT, nullable=False),
        sa.Column("line", sa.Integer(), nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("submitted_at", INSTANT, nullable=False),
        sa.Column("content", TEXT),
        sa.Column("is_failed", sa.Boolean()),
        sa.PrimaryKeyConstraint("batch_id", "line", name="pk_batch_lines"),
        sa.ForeignKeyConstraint(
            ["batch_id", "tenant_id"],
            ["batches.id", "batches.tenant_id"],
            name="fk_batch_lines_batch_id_tenant_id_batches",
            ondelete="CASCADE",
        ),
        sa.CheckConstraint(
            "(content IS NULL) = (is_failed IS NULL)", name=op.f("ck_batch_lines_failed_or_not")
        ),
    )


def _metrics(more: str) -> None:
    for name, condition in (
        ("metric_known", f"metric IN ({METRICS}{more})"),
        ("stored_by_tenants", f"metric NOT IN ({OF_TENANTS}{more}) OR (scope = 'tenant' AND model = '')"),
    ):
        op.drop_constraint(op.f(f"ck_limits_{name}"), "limits")
        op.create_check_constraint(op.f(f"ck_limits_{name}"), "limits", condition)


def _purposes(table: str, purposes: tuple[str, ...]) -> None:
    op.drop_constraint(op.f(f"ck_{table}_purpose_known"), table)
    known = ", ".join(f"'{purpose}'" for purpose in purposes)
    op.create_check_constraint(op.f(f"ck_{table}_purpose_known"), table, f"purpose IN ({known})")
