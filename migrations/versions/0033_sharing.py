"""Adapters shared with other organizations: offers, the surcharge on requests, and what owners earn.

Leaves the running release's queries as they are: new columns have constant defaults, so no partition is
rewritten, and a row without an owner is what it was.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None
expand_only = True

TEXT, INSTANT, COUNT = sa.Text(), sa.DateTime(timezone=True), sa.BigInteger()
NOW, ZERO = sa.text("now()"), sa.text("0")
ROLLUPS = ("usage_rollups", "usage_rollup_hours", "usage_rollup_days")
KINDS = "'usage', 'storage', 'calibration', 'fee', 'allowance', 'prepaid', 'carried', 'credit', 'kept'"
LIVE = sa.text("state IN ('offered', 'active')")

# `billing.shares.ShareTerms` in SQL. div rounds down; what is added first makes the surcharge round up.
SURCHARGE = """
CREATE FUNCTION usage_surcharge(prompt bigint, completion bigint, input bigint, output bigint)
RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CAST(div(CAST(prompt AS numeric) * input + CAST(completion AS numeric) * output + 999999, 1000000)
            AS bigint)
"""
OWNER_PART = """
CREATE FUNCTION usage_owner_part(prompt bigint, completion bigint, input bigint, output bigint,
                                 percent integer)
RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CAST(div((CAST(prompt AS numeric) * input + CAST(completion AS numeric) * output) * percent, 100000000)
            AS bigint)
"""
# A generated column would rewrite every partition. The condition costs a request without an owner nothing.
FILL = """
CREATE FUNCTION fill_usage_share() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    new.surcharge := usage_surcharge(new.prompt_tokens, new.completion_tokens,
                                     new.share_input_price, new.share_output_price);
    new.owner_part := usage_owner_part(new.prompt_tokens, new.completion_tokens,
                                       new.share_input_price, new.share_output_price, new.owner_percent);
    RETURN new;
END
$$
"""
FIXED = ("owner_id", "share_id", "share_input_price", "share_output_price", "owner_percent")
# PostgreSQL runs triggers in the order of their names: what is fixed is compared before amounts are filled.
TRIGGERS = {
    "usage_records_share_fixed": (
        "BEFORE UPDATE ON usage_records FOR EACH ROW "
        f"WHEN (({', '.join(f'old.{name}' for name in FIXED)}) IS DISTINCT FROM "
        f"({', '.join(f'new.{name}' for name in FIXED)}) "
        "OR new.owner_id IS NULL AND (new.surcharge, new.owner_part) <> (old.surcharge, old.owner_part)) "
        "EXECUTE FUNCTION refuse_ledger_change()"
    ),
    "usage_records_share_sums": (
        "BEFORE INSERT OR UPDATE ON usage_records FOR EACH ROW WHEN (new.owner_id IS NOT NULL) "
        "EXECUTE FUNCTION fill_usage_share()"
    ),
}
# The organization that an adapter is offered to sees the offer, and may answer it; only the owner makes one.
RECIPIENTS = [
    f"CREATE POLICY recipient_{verb.lower()} ON adapter_shares FOR {verb} "
    "USING (recipient_id = (SELECT current_setting('rootstock.tenant', true)))"
    for verb in ("SELECT", "UPDATE")
]


def upgrade() -> None:
    _shares()
    _ledger()
    _earnings()
    for table in ("sharing_handles", "adapter_shares", "share_earnings"):
        op.execute(f"SELECT secure_tenant_rows('{table}')")
    for policy in RECIPIENTS:
        op.execute(policy)
    _kinds(f"{KINDS}, 'earnings'")


def downgrade() -> None:
    _kinds(KINDS)
    for trigger in TRIGGERS:
        op.execute(f"DROP TRIGGER {trigger} ON usage_records")
    for function in ("fill_usage_share", "usage_surcharge", "usage_owner_part"):
        op.execute(f"DROP FUNCTION {function}")
    for column in ("owner_part", "surcharge", *reversed(FIXED)):
        op.drop_column("usage_records", column)
    for column in ("owner_part", "share_id", "owner_id", "surcharge"):
        op.drop_column("reversals", column)
    for table in ROLLUPS:
        op.drop_column(table, "surcharge")
    for table in ("share_earnings", "adapter_shares", "sharing_handles"):
        op.drop_table(table)


def _shares() -> None:
    op.create_table(
        "sharing_handles",
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("handle", TEXT, nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_sharing_handles"),
        sa.UniqueConstraint("handle", name="uq_sharing_handles_handle"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_sharing_handles_tenant_id_tenants"),
    )
    op.create_table(
        "adapter_shares",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("adapter_id", TEXT, nullable=False),
        sa.Column("recipient_id", TEXT, nullable=False),
        sa.Column("base", TEXT, nullable=False),
        sa.Column("handle", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("state", TEXT, server_default=sa.text("'offered'"), nullable=False),
        sa.Column("input_surcharge", COUNT, nullable=False),
        sa.Column("output_surcharge", COUNT, nullable=False),
        sa.Column("owner_percent", sa.Integer(), nullable=False),
        sa.Column("created_by", TEXT),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("accepted_at", INSTANT),
        sa.Column("ended_at", INSTANT),
        sa.Column("ended_by", TEXT),
        sa.PrimaryKeyConstraint("id", name="pk_adapter_shares"),
        sa.ForeignKeyConstraint(
            ["adapter_id", "tenant_id"],
            ["adapters.id", "adapters.tenant_id"],
            name="fk_adapter_shares_adapter_id_tenant_id_adapters",
        ),
        sa.ForeignKeyConstraint(
            ["recipient_id"], ["tenants.id"], name="fk_adapter_shares_recipient_id_tenants"
        ),
        sa.CheckConstraint(
            "state IN ('offered', 'active', 'declined', 'ended')", name=op.f("ck_adapter_shares_state_known")
        ),
        sa.CheckConstraint("recipient_id <> tenant_id", name=op.f("ck_adapter_shares_with_another")),
        sa.CheckConstraint(
            "input_surcharge >= 0 AND output_surcharge >= 0 AND owner_percent BETWEEN 0 AND 100",
            name=op.f("ck_adapter_shares_terms_sane"),
        ),
        sa.CheckConstraint(
            "(state IN ('declined', 'ended')) = (ended_at IS NOT NULL)"
            " AND (state <> 'active' OR accepted_at IS NOT NULL)",
            name=op.f("ck_adapter_shares_times_of_state"),
        ),
    )
    op.create_index(
        "ix_adapter_shares_tenant_id_adapter_id_id", "adapter_shares", ["tenant_id", "adapter_id", "id"]
    )
    op.create_index("ix_adapter_shares_recipient_id_id", "adapter_shares", ["recipient_id", "id"])
    op.create_index(
        "uq_adapter_shares_live",
        "adapter_shares",
        ["adapter_id", "recipient_id"],
        unique=True,
        postgresql_where=LIVE,
    )
    op.create_index(
        "uq_adapter_shares_live_name",
        "adapter_shares",
        ["recipient_id", "base", "handle", "name"],
        unique=True,
        postgresql_where=LIVE,
    )


def _ledger() -> None:
    for name in ("owner_id", "share_id"):
        op.add_column("usage_records", sa.Column(name, TEXT))
    for name in ("share_input_price", "share_output_price"):
        op.add_column("usage_records", sa.Column(name, COUNT, server_default=ZERO, nullable=False))
    op.add_column(
        "usage_records", sa.Column("owner_percent", sa.Integer(), server_default=ZERO, nullable=False)
    )
    for name in ("surcharge", "owner_part"):
        op.add_column("usage_records", sa.Column(name, COUNT, server_default=ZERO, nullable=False))
    for function in (SURCHARGE, OWNER_PART, FILL):
        op.execute(function)
    for name, trigger in TRIGGERS.items():
        op.execute(f"CREATE TRIGGER {name} {trigger}")
    for table in ROLLUPS:
        op.add_column(table, sa.Column("surcharge", COUNT, server_default=ZERO, nullable=False))
    op.add_column("reversals", sa.Column("surcharge", COUNT, server_default=ZERO, nullable=False))
    for name in ("owner_id", "share_id"):
        op.add_column("reversals", sa.Column(name, TEXT))
    op.add_column("reversals", sa.Column("owner_part", COUNT, server_default=ZERO, nullable=False))


def _earnings() -> None:
    sums = ("num_requests", "prompt_tokens", "completion_tokens", "surcharge", "owner_part")
    op.create_table(
        "share_earnings",
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("day", INSTANT, nullable=False),
        sa.Column("share_id", TEXT, nullable=False),
        sa.Column("model", TEXT, nullable=False),
        *(sa.Column(name, COUNT, nullable=False) for name in sums),
        sa.PrimaryKeyConstraint("tenant_id", "day", "share_id", "model", name="pk_share_earnings"),
    )


def _kinds(known: str) -> None:
    op.drop_constraint(op.f("ck_invoice_lines_kind_known"), "invoice_lines")
    op.create_check_constraint(op.f("ck_invoice_lines_kind_known"), "invoice_lines", f"kind IN ({known})")
