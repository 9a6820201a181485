"""Replaces the function that makes partitions by one without a SET clause for the tenant.

Databases that a superuser migrated have the clause from 0004 and 0007 as they were before 0.2.0. Only a
superuser may create such a function, so any other owner would fail to restore a dump of the database.
"""

from __future__ import annotations

from importlib import import_module

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None
expand_only = True


def upgrade() -> None:
    op.execute(import_module("migrations.versions.0007_ledger").ENSURE_MONTHS)


def downgrade() -> None:
    """The function of 0007 is the same."""
