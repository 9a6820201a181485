"""The status page and the capacity page: what was sampled of each component and of each resource, and
incidents that are planned maintenance.

Rows of before are incidents of no component in particular.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None
expand_only = True

TEXT, INSTANT, COUNT = sa.Text(), sa.DateTime(timezone=True), sa.Integer()
ZERO = sa.text("0")
STATES = ("operational", "degraded", "down", "maintenance")


def upgrade() -> None:
    op.create_table(
        "status_samples",
        sa.Column("component", TEXT, nullable=False),
        sa.Column("minute", INSTANT, nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("minute", "component", name="pk_status_samples"),
        sa.CheckConstraint(
            f"state IN ({', '.join(map(repr, STATES))})", name=op.f("ck_status_samples_state_known")
        ),
    )
    op.create_table(
        "status_days",
        sa.Column("component", TEXT, nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        *(sa.Column(state, COUNT, server_default=ZERO, nullable=False) for state in STATES),
        sa.PrimaryKeyConstraint("day", "component", name="pk_status_days"),
    )
    op.create_table(
        "capacity_samples",
        sa.Column("hour", INSTANT, nullable=False),
        sa.Column("subject", TEXT, nullable=False),
        sa.Column("resource", TEXT, nullable=False),
        sa.Column("num_samples", COUNT, nullable=False),
        sa.Column("total", sa.Double(), nullable=False),
        sa.Column("peak", sa.Double(), nullable=False),
        sa.Column("limit", sa.Double()),
        sa.PrimaryKeyConstraint("hour", "subject", "resource", name="pk_capacity_samples"),
        sa.CheckConstraint("num_samples > 0", name=op.f("ck_capacity_samples_has_samples")),
    )
    op.add_column("incidents", sa.Column("planned_until", INSTANT))
    op.add_column(
        "incidents", sa.Column("components", ARRAY(TEXT), server_default=sa.text("'{}'"), nullable=False)
    )
    op.create_check_constraint(op.f("ck_incidents_planned_later"), "incidents", "planned_until > began_at")


def downgrade() -> None:
    op.drop_constraint(op.f("ck_incidents_planned_later"), "incidents", type_="check")
    op.drop_column("incidents", "components")
    op.drop_column("incidents", "planned_until")
    op.drop_table("capacity_samples")
    op.drop_table("status_days")
    op.drop_table("status_samples")
