"""The ledger's count of reasoning tokens: those of a request's completion tokens that the model thought with.

Like the other counts, it only grows.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None
expand_only = True

TRIGGER = "usage_records_reasoning_only_grows"


def upgrade() -> None:
    # A constant default: no partition is rewritten.
    op.add_column(
        "usage_records",
        sa.Column("reasoning_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
    )
    op.execute(
        f"CREATE TRIGGER {TRIGGER} BEFORE UPDATE ON usage_records FOR EACH ROW "
        "WHEN (new.reasoning_tokens < old.reasoning_tokens) EXECUTE FUNCTION refuse_ledger_change()"
    )


def downgrade() -> None:
    op.execute(f"DROP TRIGGER {TRIGGER} ON usage_records")
    op.drop_column("usage_records", "reasoning_tokens")
