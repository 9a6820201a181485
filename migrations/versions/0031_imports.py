"""Where a version's files were imported from.

Leaves the running release's queries as they are: it does not read the new column.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None
expand_only = True


def upgrade() -> None:
    op.add_column("adapter_versions", sa.Column("origin", JSONB))


def downgrade() -> None:
    op.drop_column("adapter_versions", "origin")
