"""Billing accounts, credits and invoices."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

TEXT, INSTANT, MONEY, DAY = sa.Text(), sa.TIMESTAMP(timezone=True), sa.BigInteger(), sa.Date()
NOW, NOTHING, EMPTY = sa.text("now()"), sa.text("''"), sa.text("'{}'")

REFUSE_CHANGE = """
CREATE FUNCTION refuse_document_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is only ever added to: % is refused, a correction is a new row', TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'restrict_violation';
END $$
"""
FINAL = ("credits", "invoices", "invoice_lines", "credit_notes", "invoice_payments", "closed_months")
OWNED = (
    *("billing_accounts", "prepaid_periods", "credits"),
    *("invoices", "invoice_lines", "credit_notes", "invoice_payments"),
)


def upgrade() -> None:
    for column in ("monthly_fee", "included_usage"):
        op.add_column("plans", sa.Column(column, MONEY, server_default=sa.text("0"), nullable=False))
    op.create_check_constraint(
        op.f("ck_plans_fees_sane"), "plans", "monthly_fee >= 0 AND included_usage >= 0"
    )
    _accounts()
    _invoices()
    _corrections()
    op.execute(REFUSE_CHANGE)
    for table in FINAL:
        op.execute(
            f"CREATE TRIGGER {table}_stay BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_document_change()"
        )
    for table in OWNED:
        op.execute(f"SELECT secure_tenant_rows('{table}')")


def _accounts() -> None:
    op.create_table(
        "billing_accounts",
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("mode", TEXT, server_default=sa.text("'postpaid'"), nullable=False),
        sa.Column("state", TEXT, server_default=sa.text("'active'"), nullable=False),
        sa.Column("grace_until", INSTANT),
        sa.Column("stripe_customer_id", TEXT),
        sa.Column("stripe_subscription_id", TEXT),
        *(
            sa.Column(name, TEXT, server_default=NOTHING, nullable=False)
            for name in ("name", "email", "address", "country", "tax_id")
        ),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("updated_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_billing_accounts"),
        sa.CheckConstraint("mode IN ('postpaid', 'prepaid')", name=op.f("ck_billing_accounts_mode_known")),
        sa.CheckConstraint(
            "state IN ('active', 'grace', 'suspended')", name=op.f("ck_billing_accounts_state_known")
        ),
        sa.CheckConstraint(
            "(state = 'grace') = (grace_until IS NOT NULL)", name=op.f("ck_billing_accounts_grace_ends")
        ),
    )
    for column in ("stripe_customer_id", "stripe_subscription_id"):
        op.create_index(f"uq_billing_accounts_{column}", "billing_accounts", [column], unique=True)
    op.create_table(
        "prepaid_periods",
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("since", INSTANT, nullable=False),
        sa.Column("until", INSTANT),
        sa.PrimaryKeyConstraint("tenant_id", "since", name="pk_prepaid_periods"),
        sa.CheckConstraint("until > since", name=op.f("ck_prepaid_periods_ends_later")),
        sa.CheckConstraint(
            "date_trunc('minute', since, 'UTC') = since AND date_trunc('minute', until, 'UTC') = until",
            name=op.f("ck_prepaid_periods_whole_minutes"),
        ),
    )
    op.create_index(
        "uq_prepaid_periods_open",
        "prepaid_periods",
        ["tenant_id"],
        unique=True,
        postgresql_where=sa.text("until IS NULL"),
    )


def _invoices() -> None:
    op.create_table(
        "document_numbers",
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("last", MONEY, nullable=False),
        sa.PrimaryKeyConstraint("kind", name="pk_document_numbers"),
        sa.CheckConstraint("last >= 0", name=op.f("ck_document_numbers_last_counts")),
    )
    op.execute("INSERT INTO document_numbers (kind, last) VALUES ('invoice', 0), ('credit_note', 0)")
    op.create_table(
        "invoices",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("number", MONEY, nullable=False),
        sa.Column("month", DAY, nullable=False),
        sa.Column("issued_at", INSTANT, nullable=False),
        sa.Column("due_at", INSTANT, nullable=False),
        sa.Column("currency", TEXT, server_default=sa.text("'usd'"), nullable=False),
        *(sa.Column(name, MONEY, nullable=False) for name in ("total", "total_cents", "carried_out")),
        *(sa.Column(name, JSONB, nullable=False) for name in ("seller", "customer")),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_invoices"),
        sa.UniqueConstraint("number", name="uq_invoices_number"),
        sa.UniqueConstraint("tenant_id", "month", name="uq_invoices_tenant_id_month"),
        sa.UniqueConstraint("id", "tenant_id", name="uq_invoices_id_tenant_id"),
        sa.CheckConstraint("number > 0", name=op.f("ck_invoices_number_positive")),
        sa.CheckConstraint("extract(day FROM month) = 1", name=op.f("ck_invoices_whole_month")),
        sa.CheckConstraint("currency = 'usd'", name=op.f("ck_invoices_currency_known")),
        sa.CheckConstraint("total >= 0", name=op.f("ck_invoices_never_below_zero")),
        sa.CheckConstraint(
            "total = total_cents * 10000 + carried_out AND carried_out >= -5000 AND carried_out < 5000",
            name=op.f("ck_invoices_rounded_half_up"),
        ),
    )
    op.create_index("ix_invoices_tenant_id_id", "invoices", ["tenant_id", "id"])
    op.create_table(
        "invoice_lines",
        sa.Column("invoice_id", TEXT, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("month", DAY, nullable=False),
        sa.Column("description", TEXT, nullable=False),
        sa.Column("details", JSONB, server_default=EMPTY, nullable=False),
        sa.Column("amount", MONEY, nullable=False),
        sa.PrimaryKeyConstraint("invoice_id", "number", name="pk_invoice_lines"),
        sa.ForeignKeyConstraint(["invoice_id"], ["invoices.id"], name="fk_invoice_lines_invoice_id_invoices"),
        sa.CheckConstraint("number > 0", name=op.f("ck_invoice_lines_number_positive")),
        sa.CheckConstraint(
            "kind IN ('usage', 'storage', 'calibration', 'fee', 'allowance', 'prepaid', 'carried', 'credit',"
            " 'kept')",
            name=op.f("ck_invoice_lines_kind_known"),
        ),
    )
    op.create_index("ix_invoice_lines_tenant_id_month", "invoice_lines", ["tenant_id", "month"])
    op.create_table(
        "closed_months",
        sa.Column("month", DAY, nullable=False),
        sa.Column("closed_at", INSTANT, nullable=False),
        sa.Column("num_invoices", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("month", name="pk_closed_months"),
        sa.CheckConstraint("extract(day FROM month) = 1", name=op.f("ck_closed_months_whole_month")),
    )


def _corrections() -> None:
    op.create_table(
        "credits",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("amount", MONEY, nullable=False),
        sa.Column("reference", TEXT, nullable=False),
        sa.Column("reason", TEXT, server_default=NOTHING, nullable=False),
        sa.Column("invoice_id", TEXT),
        sa.Column("expires_at", INSTANT),
        sa.Column("actor", JSONB, nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_credits"),
        sa.UniqueConstraint("tenant_id", "kind", "reference", name="uq_credits_tenant_id_kind_reference"),
        sa.ForeignKeyConstraint(["invoice_id"], ["invoices.id"], name="fk_credits_invoice_id_invoices"),
        sa.CheckConstraint(
            "(kind IN ('top_up', 'grant', 'credit_note', 'kept') AND amount > 0)"
            " OR (kind IN ('applied', 'refund', 'expiry') AND amount < 0)",
            name=op.f("ck_credits_sign_of_kind"),
        ),
        sa.CheckConstraint(
            "kind NOT IN ('applied', 'kept') OR invoice_id IS NOT NULL", name=op.f("ck_credits_of_invoice")
        ),
        sa.CheckConstraint(
            "expires_at IS NULL OR kind IN ('top_up', 'grant')", name=op.f("ck_credits_expiring_kinds")
        ),
    )
    op.create_index("ix_credits_tenant_id_id", "credits", ["tenant_id", "id"])
    op.create_table(
        "credit_notes",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("number", MONEY, nullable=False),
        sa.Column("invoice_id", TEXT, nullable=False),
        sa.Column("issued_at", INSTANT, nullable=False),
        sa.Column("amount_cents", MONEY, nullable=False),
        sa.Column("settlement", TEXT, nullable=False),
        sa.Column("reason", TEXT, nullable=False),
        sa.Column("actor", JSONB, nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_credit_notes"),
        sa.UniqueConstraint("number", name="uq_credit_notes_number"),
        sa.ForeignKeyConstraint(["invoice_id"], ["invoices.id"], name="fk_credit_notes_invoice_id_invoices"),
        sa.CheckConstraint("number > 0", name=op.f("ck_credit_notes_number_positive")),
        sa.CheckConstraint("amount_cents > 0", name=op.f("ck_credit_notes_amount_positive")),
        sa.CheckConstraint(
            "settlement IN ('due', 'credit', 'refund')", name=op.f("ck_credit_notes_settlement_known")
        ),
    )
    op.create_index("ix_credit_notes_tenant_id_id", "credit_notes", ["tenant_id", "id"])
    op.create_index("ix_credit_notes_invoice_id", "credit_notes", ["invoice_id"])
    op.create_table(
        "invoice_payments",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("invoice_id", TEXT, nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("amount_cents", MONEY, nullable=False),
        sa.Column("reference", TEXT, nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_invoice_payments"),
        sa.UniqueConstraint(
            "tenant_id", "kind", "reference", name="uq_invoice_payments_tenant_id_kind_reference"
        ),
        sa.ForeignKeyConstraint(
            ["invoice_id"], ["invoices.id"], name="fk_invoice_payments_invoice_id_invoices"
        ),
        sa.CheckConstraint(
            "(kind = 'payment' AND amount_cents > 0) OR (kind = 'refund' AND amount_cents < 0)",
            name=op.f("ck_invoice_payments_sign_of_kind"),
        ),
    )
    op.create_index("ix_invoice_payments_invoice_id", "invoice_payments", ["invoice_id"])


def downgrade() -> None:
    for table in (
        *("invoice_payments", "credit_notes", "credits", "invoice_lines", "invoices", "document_numbers"),
        *("closed_months", "prepaid_periods", "billing_accounts"),
    ):
        op.drop_table(table)
    op.execute("DROP FUNCTION refuse_document_change")
    for column in ("included_usage", "monthly_fee"):
        op.drop_column("plans", column)
