"""What Stripe was told, and what it told us."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

TEXT, INSTANT, COUNT, NUMBER = sa.Text(), sa.DateTime(timezone=True), sa.BigInteger(), sa.Integer()
NOW, EMPTY, ZERO = sa.text("now()"), sa.text("''"), sa.text("0")


def upgrade() -> None:
    op.add_column(
        "tenants", sa.Column("billing_state", TEXT, server_default=sa.text("'active'"), nullable=False)
    )
    op.create_check_constraint(
        op.f("ck_tenants_billing_state_known"), "tenants", "billing_state IN ('active', 'grace', 'suspended')"
    )
    _sent()
    _told()
    for table in ("stripe_subscriptions", "meter_events", "stripe_credits", "stripe_invoices"):
        op.execute(f"SELECT secure_tenant_rows('{table}')")


def _sending() -> list[sa.Column[object]]:
    return [
        sa.Column("state", TEXT, server_default=sa.text("'pending'"), nullable=False),
        sa.Column("attempts", NUMBER, server_default=ZERO, nullable=False),
        sa.Column("first_attempt_at", INSTANT),
        sa.Column("last_attempt_at", INSTANT),
        sa.Column("next_attempt_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("error", TEXT, server_default=EMPTY, nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("settled_at", INSTANT),
    ]


def _sent() -> None:
    op.create_table(
        "stripe_subscriptions",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("customer_id", TEXT, nullable=False),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("metered_from", INSTANT, nullable=False),
        sa.Column("started_at", INSTANT, nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_stripe_subscriptions"),
    )
    op.create_index("ix_stripe_subscriptions_tenant_id", "stripe_subscriptions", ["tenant_id"])
    op.create_table(
        "meter_events",
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("hour", INSTANT, nullable=False),
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("value", COUNT, nullable=False),
        sa.Column("identifier", TEXT, nullable=False),
        sa.Column("timestamp", INSTANT),
        *_sending(),
        sa.PrimaryKeyConstraint("tenant_id", "hour", "number", name="pk_meter_events"),
        sa.UniqueConstraint("identifier", name="uq_meter_events_identifier"),
        sa.CheckConstraint(
            "state IN ('pending', 'sent', 'manual', 'credited', 'waived')",
            name=op.f("ck_meter_events_state_known"),
        ),
        sa.CheckConstraint("value <> 0 AND number >= 0", name=op.f("ck_meter_events_value_counts")),
        sa.CheckConstraint("date_trunc('hour', hour, 'UTC') = hour", name=op.f("ck_meter_events_whole_hour")),
    )
    op.create_index(
        "ix_meter_events_open",
        "meter_events",
        ["tenant_id", "hour"],
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_table(
        "stripe_credits",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("cents", COUNT, nullable=False),
        *_sending(),
        sa.PrimaryKeyConstraint("id", name="pk_stripe_credits"),
        sa.CheckConstraint(
            "state IN ('pending', 'sent', 'manual', 'waived')", name=op.f("ck_stripe_credits_state_known")
        ),
        sa.CheckConstraint("cents > 0", name=op.f("ck_stripe_credits_cents_positive")),
    )
    op.create_index("ix_stripe_credits_tenant_id", "stripe_credits", ["tenant_id"])


def _told() -> None:
    op.create_table(
        "stripe_invoices",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("attempt_count", NUMBER, nullable=False),
        sa.Column("amount_due", COUNT, nullable=False),
        sa.Column("amount_paid", COUNT, nullable=False),
        sa.Column("amount_remaining", COUNT, nullable=False),
        sa.Column("period_start", INSTANT, nullable=False),
        sa.Column("period_end", INSTANT, nullable=False),
        sa.Column("failing_since", INSTANT),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_stripe_invoices"),
        sa.CheckConstraint(
            "status IN ('draft', 'open', 'uncollectible', 'void', 'paid')",
            name=op.f("ck_stripe_invoices_status_known"),
        ),
    )
    op.create_index("ix_stripe_invoices_tenant_id_status", "stripe_invoices", ["tenant_id", "status"])
    op.create_table(
        "stripe_events",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("type", TEXT, nullable=False),
        sa.Column("object_id", TEXT, nullable=False),
        sa.Column("occurred_at", INSTANT, nullable=False),
        sa.Column("state", TEXT, server_default=sa.text("'received'"), nullable=False),
        sa.Column("attempts", NUMBER, server_default=ZERO, nullable=False),
        sa.Column("next_attempt_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("error", TEXT, server_default=EMPTY, nullable=False),
        sa.Column("received_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_stripe_events"),
        sa.CheckConstraint(
            "state IN ('received', 'done', 'ignored', 'failed')", name=op.f("ck_stripe_events_state_known")
        ),
    )
    op.create_index(
        "ix_stripe_events_open",
        "stripe_events",
        ["next_attempt_at"],
        postgresql_where=sa.text("state = 'received'"),
    )


def downgrade() -> None:
    for table in (
        "stripe_events",
        "stripe_invoices",
        "stripe_credits",
        "meter_events",
        "stripe_subscriptions",
    ):
        op.drop_table(table)
    op.drop_constraint(op.f("ck_tenants_billing_state_known"), "tenants")
    op.drop_column("tenants", "billing_state")
