"""The numbers of usage events that came in, and how many engines have issued: so that losses are found."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None
expand_only = True

TEXT, COUNT, MOMENT = sa.Text(), sa.BigInteger(), sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "usage_event_ranges",
        sa.Column("engine_id", TEXT, nullable=False),
        sa.Column("incarnation", TEXT, nullable=False),
        sa.Column("first_number", COUNT, nullable=False),
        sa.Column("last_number", COUNT, nullable=False),
        sa.Column("tokens_before", COUNT, nullable=False),
        sa.Column("tokens_after", COUNT, nullable=False),
        sa.Column("noted_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("engine_id", "incarnation", "first_number", name="pk_usage_event_ranges"),
    )
    op.create_index("ix_usage_event_ranges_noted_at", "usage_event_ranges", ["noted_at"])
    op.create_table(
        "engine_incarnations",
        sa.Column("engine_id", TEXT, nullable=False),
        sa.Column("incarnation", TEXT, nullable=False),
        sa.Column("events", COUNT, nullable=False),
        sa.Column("tokens", COUNT, nullable=False),
        sa.Column("ended_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("engine_id", "incarnation", name="pk_engine_incarnations"),
    )
    op.create_index("ix_engine_incarnations_ended_at", "engine_incarnations", ["ended_at"])


def downgrade() -> None:
    op.drop_table("engine_incarnations")
    op.drop_table("usage_event_ranges")
