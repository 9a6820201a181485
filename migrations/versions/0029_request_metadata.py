"""What clients name their requests with, beside the ledger.

Contents are encrypted by the API processes; what is left readable says whose row it is.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None
expand_only = True

TEXT, INSTANT, BYTES = sa.Text(), sa.DateTime(timezone=True), sa.LargeBinary()


def upgrade() -> None:
    op.create_table(
        "request_metadata",
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("submitted_at", INSTANT, nullable=False),
        sa.Column("request_id", TEXT, nullable=False),
        sa.Column("sealed", BYTES, nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "submitted_at", "request_id", name="pk_request_metadata"),
    )
    op.execute("SELECT secure_tenant_rows('request_metadata')")


def downgrade() -> None:
    op.drop_table("request_metadata")
