"""Which key secret a stored HMAC was made with, so that those of an old secret can be counted.

Rows of before have none: their keys get it at their next use.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None
expand_only = True

TABLES = ("api_keys", "invites", "password_resets", "scim_tokens", "second_factors")


def upgrade() -> None:
    for table in TABLES:
        op.add_column(table, sa.Column("secret_id", sa.Text()))


def downgrade() -> None:
    for table in TABLES:
        op.drop_column(table, "secret_id")
