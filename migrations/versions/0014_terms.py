"""Since when plans have had their terms, and tenants their plans; what limits of rotated keys count with.

Triggers write the history down, whoever changes a plan or puts a tenant on one. What was before this is
known as it is now.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

TEXT, INSTANT = sa.Text(), sa.DateTime(timezone=True)

NOTE_TERMS = """
CREATE FUNCTION note_plan_terms() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO plan_terms (plan_id, since, name, terms) VALUES (NEW.id, now(), NEW.name, NEW.terms)
    ON CONFLICT (plan_id, since) DO UPDATE SET name = excluded.name, terms = excluded.terms;
    RETURN NULL;
END
$$
"""
NOTE_PLAN = """
CREATE FUNCTION note_tenant_plan() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO tenant_plans (tenant_id, since, plan_id) VALUES (NEW.id, now(), NEW.plan_id)
    ON CONFLICT (tenant_id, since) DO UPDATE SET plan_id = excluded.plan_id;
    RETURN NULL;
END
$$
"""


def upgrade() -> None:
    op.execute("SET LOCAL rootstock.tenant = '*'")
    op.add_column("limits", sa.Column("counted_as", TEXT, nullable=True))
    op.create_table(
        "plan_terms",
        sa.Column("plan_id", TEXT, nullable=False),
        sa.Column("since", INSTANT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("terms", JSONB, nullable=False),
        sa.PrimaryKeyConstraint("plan_id", "since", name="pk_plan_terms"),
    )
    op.create_table(
        "tenant_plans",
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("since", INSTANT, nullable=False),
        sa.Column("plan_id", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "since", name="pk_tenant_plans"),
    )
    op.execute("INSERT INTO plan_terms SELECT id, created_at, name, terms FROM plans")
    op.execute("INSERT INTO tenant_plans SELECT id, created_at, plan_id FROM tenants")
    op.execute("SELECT secure_tenant_rows('tenant_plans')")
    op.execute(NOTE_TERMS)
    op.execute(NOTE_PLAN)
    op.execute(
        "CREATE TRIGGER note_terms AFTER INSERT OR UPDATE OF name, terms ON plans "
        "FOR EACH ROW EXECUTE FUNCTION note_plan_terms()"
    )
    op.execute(
        "CREATE TRIGGER note_plan AFTER INSERT OR UPDATE OF plan_id ON tenants "
        "FOR EACH ROW EXECUTE FUNCTION note_tenant_plan()"
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER note_plan ON tenants")
    op.execute("DROP TRIGGER note_terms ON plans")
    op.execute("DROP FUNCTION note_tenant_plan")
    op.execute("DROP FUNCTION note_plan_terms")
    op.drop_table("tenant_plans")
    op.drop_table("plan_terms")
    op.drop_column("limits", "counted_as")
