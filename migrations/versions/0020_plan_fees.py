"""Since when plans have had their fees: a month is billed by those in force at its end.

A trigger writes the history down, whoever changes a plan. What was before this is known as it is now.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

TEXT, MONEY = sa.Text(), sa.BigInteger()

NOTE_FEES = """
CREATE FUNCTION note_plan_fees() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO plan_fees (plan_id, since, name, monthly_fee, included_usage)
    VALUES (NEW.id, now(), NEW.name, NEW.monthly_fee, NEW.included_usage)
    ON CONFLICT (plan_id, since) DO UPDATE
    SET name = excluded.name, monthly_fee = excluded.monthly_fee, included_usage = excluded.included_usage;
    RETURN NULL;
END
$$
"""


def upgrade() -> None:
    op.create_table(
        "plan_fees",
        sa.Column("plan_id", TEXT, nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("monthly_fee", MONEY, nullable=False),
        sa.Column("included_usage", MONEY, nullable=False),
        sa.PrimaryKeyConstraint("plan_id", "since", name="pk_plan_fees"),
    )
    op.execute("INSERT INTO plan_fees SELECT id, created_at, name, monthly_fee, included_usage FROM plans")
    op.execute(NOTE_FEES)
    op.execute(
        "CREATE TRIGGER note_fees AFTER INSERT OR UPDATE OF name, monthly_fee, included_usage ON plans "
        "FOR EACH ROW EXECUTE FUNCTION note_plan_fees()"
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER note_fees ON plans")
    op.execute("DROP FUNCTION note_plan_fees")
    op.drop_table("plan_fees")
