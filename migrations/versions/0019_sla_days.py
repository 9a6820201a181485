"""What each tenant was served like, by class and day: sums of the hours, those that are there included."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

TEXT, INSTANT, COUNT = sa.Text(), sa.DateTime(timezone=True), sa.BigInteger()
SUMS = ("requests", "failed", "first_tokens", "first_tokens_in_time", "rated", "rated_fast")
HISTOGRAMS = {"first_token_histogram": 81, "output_rate_histogram": 57}
_SUMMED = ", ".join(
    [f"sum({name})" for name in SUMS]
    + [
        f"ARRAY[{', '.join(f'sum({name}[{place}])' for place in range(1, length + 1))}]::bigint[]"
        for name, length in HISTOGRAMS.items()
    ]
)
DERIVE = f"""
INSERT INTO sla_days (tenant_id, service_tier, day, {", ".join((*SUMS, *HISTOGRAMS))})
SELECT tenant_id, service_tier, date_trunc('day', hour, 'UTC'), {_SUMMED}
FROM sla_hours GROUP BY 1, 2, 3
"""


def upgrade() -> None:
    op.create_table(
        "sla_days",
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("service_tier", TEXT, nullable=False),
        sa.Column("day", INSTANT, nullable=False),
        *(sa.Column(name, COUNT, nullable=False) for name in SUMS),
        *(sa.Column(name, ARRAY(COUNT), nullable=False) for name in HISTOGRAMS),
        sa.PrimaryKeyConstraint("tenant_id", "service_tier", "day", name="pk_sla_days"),
        sa.CheckConstraint("failed BETWEEN 0 AND requests", name=op.f("ck_sla_days_counts_sane")),
    )
    op.execute(DERIVE)
    op.execute("SELECT secure_tenant_rows('sla_days')")


def downgrade() -> None:
    op.drop_table("sla_days")
