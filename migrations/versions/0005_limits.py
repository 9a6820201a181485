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
    _terms()
    _prices()


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
    op.drop_table("prices")
    op.execute("DROP FUNCTION refuse_price_change()")
    op.drop_column("plans", "terms")
