"""What the payment provider is told of invoices, credit notes and customers. Credits on its balance, which
stood for usage taken back, are no more: what is taken back is on an invoice.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

TEXT, INSTANT, COUNT, NUMBER = sa.Text(), sa.DateTime(timezone=True), sa.BigInteger(), sa.Integer()
NOW, EMPTY, ZERO = sa.text("now()"), sa.text("''"), sa.text("0")


def upgrade() -> None:
    op.drop_table("stripe_credits")
    op.create_table(
        "stripe_documents",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("invoice_id", TEXT, nullable=False),
        sa.Column("cents", COUNT, nullable=False),
        sa.Column("provider_id", TEXT),
        *_sending(),
        sa.PrimaryKeyConstraint("id", name="pk_stripe_documents"),
        sa.CheckConstraint("kind IN ('invoice', 'credit_note')", name=op.f("ck_stripe_documents_kind_known")),
        sa.CheckConstraint(
            "state IN ('pending', 'sent', 'manual', 'waived')", name=op.f("ck_stripe_documents_state_known")
        ),
        sa.CheckConstraint("cents > 0", name=op.f("ck_stripe_documents_cents_positive")),
    )
    op.create_index("ix_stripe_documents_tenant_id", "stripe_documents", ["tenant_id"])
    op.create_index("ix_stripe_documents_invoice_id", "stripe_documents", ["invoice_id"])
    op.create_index(
        "ix_stripe_documents_open",
        "stripe_documents",
        ["next_attempt_at"],
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.execute("SELECT secure_tenant_rows('stripe_documents')")
    op.add_column("stripe_invoices", sa.Column("invoice_id", TEXT))
    op.add_column("billing_accounts", sa.Column("provider_details", JSONB))
    op.add_column("billing_accounts", sa.Column("provider_error", TEXT, server_default=EMPTY, nullable=False))
    for table in ("charges", "reversals"):
        op.create_index(f"ix_{table}_created_at", table, ["created_at"])
    op.create_index("ix_stripe_events_received_at", "stripe_events", ["received_at"])
    # Subscriptions that charge for the meter: the next round replaces them.
    op.execute("UPDATE billing_accounts SET stripe_subscription_id = NULL")


def _sending() -> list[sa.Column[object]]:
    return [
        sa.Column("state", TEXT, server_default=sa.text("'pending'"), nullable=False),
        sa.Column("attempts", NUMBER, server_default=ZERO, nullable=False),
        sa.Column("first_attempt_at", INSTANT),
        sa.Column("last_attempt_at", INSTANT),
        sa.Column("next_attempt_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("error", TEXT, server_default=EMPTY, nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("settled_at", INSTANT),
    ]


def downgrade() -> None:
    op.drop_index("ix_stripe_events_received_at")
    for table in ("charges", "reversals"):
        op.drop_index(f"ix_{table}_created_at")
    op.drop_column("billing_accounts", "provider_error")
    op.drop_column("billing_accounts", "provider_details")
    op.drop_column("stripe_invoices", "invoice_id")
    op.drop_table("stripe_documents")
    op.create_table(
        "stripe_credits",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("cents", COUNT, nullable=False),
        *_sending(),
        sa.PrimaryKeyConstraint("id", name="pk_stripe_credits"),
        sa.CheckConstraint(
            "state IN ('pending', 'sent', 'manual', 'waived')", name=op.f("ck_stripe_credits_state_known")
        ),
        sa.CheckConstraint("cents > 0", name=op.f("ck_stripe_credits_cents_positive")),
    )
    op.create_index("ix_stripe_credits_tenant_id", "stripe_credits", ["tenant_id"])
    op.execute("SELECT secure_tenant_rows('stripe_credits')")
