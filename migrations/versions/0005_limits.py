"""Limits, terms of service classes, and prices."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

TEXT, INSTANT = sa.Text(), sa.TIMESTAMP(timezone=True)
NOW, EMPTY = sa.text("now()"), sa.text("'{}'")

REFUSE_CHANGE = """
CREATE FUNCTION refuse_price_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a price is never changed: add a version' USING ERRCODE = 'restrict_violation';
END
$$
"""


def upgrade() -> None:
    _limits()
    _terms()
    _prices()


METRICS = (
    "'requests_per_minute', 'tokens_per_minute', 'input_tokens_per_minute', 'output_tokens_per_minute', "
    "'concurrent_requests', 'requests_per_day', 'tokens_per_day', 'tokens_per_month', 'spend_per_month', "
    "'adapters', 'storage_bytes'"
)


def _limits() -> None:
    op.add_column("plans", sa.Column("limits", JSONB, server_default=EMPTY, nullable=False))
    op.create_table(
        "limits",
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("scope", TEXT, nullable=False),
        sa.Column("scope_id", TEXT, nullable=False),
        sa.Column("model", TEXT, server_default=sa.text("''"), nullable=False),
        sa.Column("metric", TEXT, nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "scope", "scope_id", "model", "metric", name="pk_limits"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_limits_tenant_id_tenants"),
        sa.CheckConstraint("scope IN ('tenant', 'project', 'key')", name=op.f("ck_limits_scope_known")),
        sa.CheckConstraint(
            "scope <> 'tenant' OR scope_id = tenant_id", name=op.f("ck_limits_scope_of_tenant")
        ),
        sa.CheckConstraint(f"metric IN ({METRICS})", name=op.f("ck_limits_metric_known")),
        sa.CheckConstraint("amount >= 0", name=op.f("ck_limits_amount_counts")),
        sa.CheckConstraint(
            "metric NOT IN ('adapters', 'storage_bytes') OR (scope = 'tenant' AND model = '')",
            name=op.f("ck_limits_stored_by_tenants"),
        ),
    )
    op.execute("SELECT secure_tenant_rows('limits')")


def _terms() -> None:
    op.add_column("plans", sa.Column("terms", JSONB, server_default=EMPTY, nullable=False))


def _prices() -> None:
    op.create_table(
        "prices",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("effective_from", INSTANT, nullable=False),
        sa.Column("input", sa.BigInteger(), nullable=False),
        sa.Column("cached_input", sa.BigInteger(), nullable=False),
        sa.Column("output", sa.BigInteger(), nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_prices"),
        sa.UniqueConstraint("effective_from", name="uq_prices_effective_from"),
        sa.CheckConstraint(
            "input >= 0 AND cached_input >= 0 AND output >= 0", name=op.f("ck_prices_amounts_sane")
        ),
    )
    # What was billed can be billed again only while the versions it names stay as they were.
    op.execute(REFUSE_CHANGE)
    op.execute(
        "CREATE TRIGGER prices_stay BEFORE UPDATE OR DELETE OR TRUNCATE ON prices "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_price_change()"
    )


def downgrade() -> None:
    op.drop_table("limits")
    op.drop_column("plans", "limits")
    op.drop_table("prices")
    op.execute("DROP FUNCTION refuse_price_change()")
    op.drop_column("plans", "terms")
