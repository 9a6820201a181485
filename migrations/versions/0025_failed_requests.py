"""An index of the ledger's requests that did not end well: among a million others they are few.

Writes to the ledger wait while it is built; usage waits in the journal meanwhile.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None
expand_only = True


def upgrade() -> None:
    op.create_index(
        "ix_usage_records_failed",
        "usage_records",
        ["tenant_id", "submitted_at"],
        postgresql_where=sa.text("finish_reason = ANY (ARRAY['abort', 'error'])"),
    )


def downgrade() -> None:
    op.drop_index("ix_usage_records_failed", "usage_records")
