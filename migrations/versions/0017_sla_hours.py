"""What each tenant was served like, by class and hour: sums of the minutes, those that are there included."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0017"
down_revision = "0016"
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
INSERT INTO sla_hours (tenant_id, service_tier, hour, {", ".join((*SUMS, *HISTOGRAMS))})
SELECT tenant_id, service_tier, date_trunc('hour', minute, 'UTC'), {_SUMMED}
FROM sla_minutes GROUP BY 1, 2, 3
"""


def upgrade() -> None:
    op.create_table(
        "sla_hours",
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("service_tier", TEXT, nullable=False),
        sa.Column("hour", INSTANT, nullable=False),
        *(sa.Column(name, COUNT, nullable=False) for name in SUMS),
        *(sa.Column(name, ARRAY(COUNT), nullable=False) for name in HISTOGRAMS),
        sa.PrimaryKeyConstraint("tenant_id", "service_tier", "hour", name="pk_sla_hours"),
        sa.CheckConstraint("failed BETWEEN 0 AND requests", name=op.f("ck_sla_hours_counts_sane")),
    )
    op.execute(DERIVE)
    op.execute("SELECT secure_tenant_rows('sla_hours')")


def downgrade() -> None:
    op.drop_table("sla_hours")
