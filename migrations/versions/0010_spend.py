"""Spend alerts, webhook endpoints and what was delivered."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

TEXT, INSTANT = sa.Text(), sa.DateTime(timezone=True)
NOW, NONE = sa.text("now()"), sa.text("'{}'")
SECURED = (
    "webhook_endpoints",
    "notifications",
    "deliveries",
    "spend_alerts",
    "spend_alerts_raised",
    "spend_adjustments",
)

METRICS_BEFORE = (
    "'requests_per_minute', 'tokens_per_minute', 'input_tokens_per_minute', 'output_tokens_per_minute', "
    "'concurrent_requests', 'requests_per_day', 'tokens_per_day', 'tokens_per_month', 'spend_per_month', "
    "'adapters', 'storage_bytes'"
)
METRICS = METRICS_BEFORE.replace("'adapters'", "'prepaid_balance', 'adapters'")
BY_TENANTS_BEFORE = "metric NOT IN ('adapters', 'storage_bytes') OR (scope = 'tenant' AND model = '')"
BY_TENANTS = BY_TENANTS_BEFORE.replace("('adapters'", "('prepaid_balance', 'adapters'")


def upgrade() -> None:
    _metrics(METRICS, BY_TENANTS)
    _notifications()
    _alerts()
    for table in SECURED:
        op.execute(f"SELECT secure_tenant_rows('{table}')")


def _metrics(metrics: str, by_tenants: str) -> None:
    for name, condition in (("metric_known", f"metric IN ({metrics})"), ("stored_by_tenants", by_tenants)):
        op.execute(f"ALTER TABLE limits DROP CONSTRAINT ck_limits_{name}")
        op.execute(f"ALTER TABLE limits ADD CONSTRAINT ck_limits_{name} CHECK ({condition})")


def _notifications() -> None:
    op.create_table(
        "webhook_endpoints",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("url", TEXT, nullable=False),
        sa.Column("event_types", ARRAY(TEXT), nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("previous_secret", sa.LargeBinary()),
        sa.Column("previous_until", INSTANT),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("updated_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("disabled_at", INSTANT),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_endpoints"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_webhook_endpoints_tenant_id_tenants"),
        sa.CheckConstraint("length(secret) = 32", name=op.f("ck_webhook_endpoints_secret_length")),
    )
    op.create_index("ix_webhook_endpoints_tenant_id_id", "webhook_endpoints", ["tenant_id", "id"])
    op.create_table(
        "notifications",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("type", TEXT, nullable=False),
        sa.Column("key", TEXT, nullable=False),
        sa.Column("data", JSONB, nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_notifications"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_notifications_tenant_id_tenants"),
        sa.UniqueConstraint("tenant_id", "key", name="uq_notifications_tenant_id_key"),
    )
    op.create_index("ix_notifications_created_at", "notifications", ["created_at"])
    op.create_table(
        "deliveries",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("notification_id", TEXT, nullable=False),
        sa.Column("endpoint_id", TEXT),
        sa.Column("recipient", TEXT),
        sa.Column("state", TEXT, server_default=sa.text("'pending'"), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("next_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("give_up_at", INSTANT, nullable=False),
        sa.Column("status_code", sa.Integer()),
        sa.Column("error", TEXT),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("ended_at", INSTANT),
        sa.PrimaryKeyConstraint("id", name="pk_deliveries"),
        sa.ForeignKeyConstraint(
            ["notification_id"],
            ["notifications.id"],
            name="fk_deliveries_notification_id_notifications",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["endpoint_id"],
            ["webhook_endpoints.id"],
            name="fk_deliveries_endpoint_id_webhook_endpoints",
            ondelete="CASCADE",
        ),
        sa.CheckConstraint(
            "num_nonnulls(endpoint_id, recipient) = 1", name=op.f("ck_deliveries_one_destination")
        ),
        sa.CheckConstraint(
            "state IN ('pending', 'delivered', 'failed')", name=op.f("ck_deliveries_state_known")
        ),
    )
    op.create_index(
        "ix_deliveries_due", "deliveries", ["next_at"], postgresql_where=sa.text("state = 'pending'")
    )
    op.create_index(
        "ix_deliveries_tenant_id_endpoint_id_id", "deliveries", ["tenant_id", "endpoint_id", "id"]
    )
    for column in ("notification_id", "endpoint_id"):
        op.create_index(f"ix_deliveries_{column}", "deliveries", [column])


def _alerts() -> None:
    op.create_table(
        "spend_alerts",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("project_id", TEXT),
        sa.Column("amount", sa.BigInteger()),
        sa.Column("percent", sa.Integer()),
        sa.Column("recipients", ARRAY(TEXT), server_default=NONE, nullable=False),
        sa.Column("subject_prefix", TEXT),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("updated_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_spend_alerts"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_spend_alerts_tenant_id_tenants"),
        sa.ForeignKeyConstraint(
            ["project_id", "tenant_id"],
            ["projects.id", "projects.tenant_id"],
            name="fk_spend_alerts_project_id_tenant_id_projects",
        ),
        sa.CheckConstraint("num_nonnulls(amount, percent) = 1", name=op.f("ck_spend_alerts_one_threshold")),
        sa.CheckConstraint(
            "amount > 0 AND percent BETWEEN 1 AND 1000", name=op.f("ck_spend_alerts_threshold_sane")
        ),
    )
    op.create_index("ix_spend_alerts_tenant_id_id", "spend_alerts", ["tenant_id", "id"])
    op.create_index("ix_spend_alerts_project_id", "spend_alerts", ["project_id"])
    op.create_table(
        "spend_alerts_raised",
        sa.Column("alert_id", TEXT, nullable=False),
        sa.Column("month", sa.Date(), nullable=False),
        sa.Column("threshold", sa.BigInteger(), nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("alert_id", "month", "threshold", name="pk_spend_alerts_raised"),
        sa.ForeignKeyConstraint(
            ["alert_id"],
            ["spend_alerts.id"],
            name="fk_spend_alerts_raised_alert_id_spend_alerts",
            ondelete="CASCADE",
        ),
    )
    op.create_table(
        "spend_adjustments",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("told_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("settled_at", INSTANT),
        sa.PrimaryKeyConstraint("id", name="pk_spend_adjustments"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_spend_adjustments_tenant_id_tenants"),
    )
    op.create_index("ix_spend_adjustments_tenant_id_at", "spend_adjustments", ["tenant_id", "at"])
    op.create_index(
        "ix_spend_adjustments_open",
        "spend_adjustments",
        ["told_at"],
        postgresql_where=sa.text("settled_at IS NULL"),
    )


def downgrade() -> None:
    for table in ("spend_adjustments", "spend_alerts_raised", "spend_alerts"):
        op.drop_table(table)
    for table in ("deliveries", "notifications", "webhook_endpoints"):
        op.drop_table(table)
    op.execute("DELETE FROM limits WHERE metric = 'prepaid_balance'")
    _metrics(METRICS_BEFORE, BY_TENANTS_BEFORE)
