"""Web origins whose pages may use a key."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None
expand_only = True


def upgrade() -> None:
    op.add_column(
        "api_keys",
        sa.Column("origins", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False),
    )


def downgrade() -> None:
    op.drop_column("api_keys", "origins")
