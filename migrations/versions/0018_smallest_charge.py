"""Invoices below the smallest amount that can be charged ask for nothing, and carry it to the next."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

NAME = "ck_invoices_rounded_half_up"
ROUNDED = "carried_out >= -5000 AND carried_out < 5000"
BELOW = "total_cents = 0 AND carried_out >= 5000 AND carried_out < minimum_cents * 10000 - 5000"


def upgrade() -> None:
    # Invoices there are were made without one: they stay as they are, and what they carried is checked by it.
    op.add_column("invoices", sa.Column("minimum_cents", sa.Integer(), nullable=False, server_default="0"))
    op.drop_constraint(op.f(NAME), "invoices", type_="check")
    op.create_check_constraint(
        op.f(NAME), "invoices", f"total = total_cents * 10000 + carried_out AND (({ROUNDED}) OR ({BELOW}))"
    )
    op.create_check_constraint(op.f("ck_invoices_minimum_counts"), "invoices", "minimum_cents >= 0")


def downgrade() -> None:
    """Refused by the check where an invoice has carried what could not be charged: it would not be true."""
    op.drop_constraint(op.f("ck_invoices_minimum_counts"), "invoices", type_="check")
    op.drop_constraint(op.f(NAME), "invoices", type_="check")
    op.create_check_constraint(
        op.f(NAME), "invoices", f"total = total_cents * 10000 + carried_out AND {ROUNDED}"
    )
    op.drop_column("invoices", "minimum_cents")
