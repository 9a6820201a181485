"""Periods of data, legal holds, deletions and their certificates; the oldest entries of the audit log can go.

Releases before this one serve beside it: they write no new column, and a trigger keeps the time of a
conversation's last use for them. They know no first entry of an audit log, and would call one whose oldest
entries were deleted broken: no audit log has a period until one is set.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None
expand_only = True

TEXT, INSTANT, BIG, BYTES = sa.Text(), sa.DateTime(timezone=True), sa.BigInteger(), sa.LargeBinary()
NOW, CLOCK, ZERO, NO = sa.text("now()"), sa.text("clock_timestamp()"), sa.text("0"), sa.text("false")
EMPTY = sa.text("'{}'")
TABLES = (
    "retention_settings",
    "legal_holds",
    "deletions",
    "deletion_counts",
    "owed_objects",
    "deletion_certificates",
)

# The last use of a conversation is when an item was last added, or when it was made.
USED = """
CREATE FUNCTION note_conversation_use() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    new.used_at := clock_timestamp();
    RETURN new;
END $$
"""
USED_TRIGGERS = (
    "CREATE TRIGGER conversations_made BEFORE INSERT ON conversations FOR EACH ROW "
    "WHEN (new.used_at IS NULL) EXECUTE FUNCTION note_conversation_use()",
    "CREATE TRIGGER conversations_used BEFORE UPDATE ON conversations FOR EACH ROW "
    "WHEN (new.last_position IS DISTINCT FROM old.last_position) EXECUTE FUNCTION note_conversation_use()",
)

# As in 0003, but the function below may delete: it runs as the owner of the tables. The role that serves is
# not granted DELETE, and no one may UPDATE.
REFUSE = """
CREATE OR REPLACE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN{exception}
    RAISE EXCEPTION 'the audit log is only ever added to: % of % is refused', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'insufficient_privilege';
END $$
"""
PRUNING = """
    IF TG_OP = 'DELETE' AND TG_TABLE_NAME = 'audit_log' THEN
        IF current_setting('rootstock.pruning', true) = old.tenant_id THEN
            RETURN old;
        END IF;
    END IF;"""

# Deletes the oldest entries of a chain and notes where it begins now. Young entries stay whatever is asked:
# who can call this must not be able to hide what they did lately.
PRUNE = """
CREATE FUNCTION prune_audit_log(tenant text, through bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    last_digest bytea;
    deleted bigint;
BEGIN
    PERFORM FROM audit_heads WHERE tenant_id = tenant FOR UPDATE;
    SELECT digest INTO last_digest FROM audit_log WHERE tenant_id = tenant AND seq = through;
    IF last_digest IS NULL THEN
        RETURN 0;
    END IF;
    IF EXISTS (SELECT FROM audit_log WHERE tenant_id = tenant AND seq <= through
               AND at > clock_timestamp() - interval '90 days') THEN
        RAISE EXCEPTION 'entries of the audit log younger than 90 days are never deleted'
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    PERFORM set_config('rootstock.pruning', tenant, true);
    DELETE FROM audit_log WHERE tenant_id = tenant AND seq <= through;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    PERFORM set_config('rootstock.pruning', '', true);
    UPDATE audit_heads SET first_seq = through + 1, first_previous = last_digest WHERE tenant_id = tenant;
    RETURN deleted;
END $$
"""


def upgrade() -> None:
    _settings()
    _deletions()
    _certificates()
    for table in TABLES:
        op.execute(f"SELECT secure_tenant_rows('{table}')")
    op.add_column("conversations", sa.Column("used_at", INSTANT))
    op.execute(USED)
    for trigger in USED_TRIGGERS:
        op.execute(trigger)
    op.add_column("audit_heads", sa.Column("first_seq", BIG, server_default=sa.text("1"), nullable=False))
    op.add_column("audit_heads", sa.Column("first_previous", BYTES))
    op.execute(REFUSE.format(exception=PRUNING))
    op.execute(PRUNE)


def downgrade() -> None:
    op.execute("DROP FUNCTION prune_audit_log")
    op.execute(REFUSE.format(exception=""))
    op.drop_column("audit_heads", "first_previous")
    op.drop_column("audit_heads", "first_seq")
    for trigger in ("conversations_used", "conversations_made"):
        op.execute(f"DROP TRIGGER {trigger} ON conversations")
    op.execute("DROP FUNCTION note_conversation_use")
    op.drop_column("conversations", "used_at")
    for table in ("owed_objects", "deletion_counts", "deletions", "deletion_certificates"):
        op.drop_table(table)
    op.drop_table("legal_holds")
    op.drop_table("retention_settings")


def _settings() -> None:
    op.create_table(
        "retention_settings",
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("data_class", TEXT, nullable=False),
        sa.Column("days", sa.Integer(), nullable=False),
        sa.Column("changed_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "data_class", name="pk_retention_settings"),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_retention_settings_tenant_id_tenants"
        ),
        sa.CheckConstraint("days > 0", name=op.f("ck_retention_settings_days_positive")),
    )
    op.create_table(
        "legal_holds",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("data_class", TEXT),
        sa.Column("object_id", TEXT),
        sa.Column("reason", TEXT, nullable=False),
        sa.Column("placed_by", TEXT, nullable=False),
        sa.Column("placed_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("lifted_by", TEXT),
        sa.Column("lifted_at", INSTANT),
        sa.PrimaryKeyConstraint("id", name="pk_legal_holds"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_legal_holds_tenant_id_tenants"),
        sa.CheckConstraint(
            "num_nonnulls(data_class, object_id) = 1", name=op.f("ck_legal_holds_class_or_object")
        ),
        sa.CheckConstraint(
            "(lifted_at IS NULL) = (lifted_by IS NULL)", name=op.f("ck_legal_holds_lifted_by_one")
        ),
    )
    op.create_index("ix_legal_holds_tenant_id_id", "legal_holds", ["tenant_id", "id"])
    op.create_index(
        "ix_legal_holds_in_force",
        "legal_holds",
        ["tenant_id"],
        postgresql_where=sa.text("lifted_at IS NULL"),
    )


def _deletions() -> None:
    op.create_table(
        "deletions",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("cause", TEXT, nullable=False),
        sa.Column("object_kind", TEXT),
        sa.Column("object_id", TEXT),
        sa.Column("requested_by", JSONB, server_default=EMPTY, nullable=False),
        sa.Column("periods", JSONB, server_default=EMPTY, nullable=False),
        sa.Column("state", TEXT, server_default=sa.text("'open'"), nullable=False),
        sa.Column("is_wanted_soon", sa.Boolean(), server_default=NO, nullable=False),
        sa.Column("started_at", INSTANT, server_default=CLOCK, nullable=False),
        sa.Column("ended_at", INSTANT),
        sa.Column("certificate_id", TEXT),
        sa.PrimaryKeyConstraint("id", name="pk_deletions"),
        sa.CheckConstraint(
            "cause IN ('periods', 'request', 'organization')", name=op.f("ck_deletions_cause_known")
        ),
        sa.CheckConstraint(
            "state IN ('open', 'deleted', 'certified')", name=op.f("ck_deletions_state_known")
        ),
    )
    op.create_index("ix_deletions_tenant_id_id", "deletions", ["tenant_id", "id"])
    op.create_index("ix_deletions_tenant_id_object_id", "deletions", ["tenant_id", "object_id"])
    op.create_index(
        "ix_deletions_unfinished",
        "deletions",
        ["tenant_id"],
        postgresql_where=sa.text("state <> 'certified'"),
    )
    op.create_index(
        "uq_deletions_open_periods",
        "deletions",
        ["tenant_id"],
        unique=True,
        postgresql_where=sa.text("state = 'open' AND cause = 'periods'"),
    )
    op.create_table(
        "deletion_counts",
        sa.Column("deletion_id", TEXT, nullable=False),
        sa.Column("table_name", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("data_class", TEXT),
        sa.Column("num_rows", BIG, server_default=ZERO, nullable=False),
        sa.Column("num_objects", BIG, server_default=ZERO, nullable=False),
        sa.Column("oldest", INSTANT),
        sa.Column("newest", INSTANT),
        sa.Column("ids", JSONB),
        sa.Column("ids_digest", BYTES),
        sa.PrimaryKeyConstraint("deletion_id", "table_name", name="pk_deletion_counts"),
        sa.ForeignKeyConstraint(
            ["deletion_id"],
            ["deletions.id"],
            name="fk_deletion_counts_deletion_id_deletions",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_deletion_counts_tenant_id", "deletion_counts", ["tenant_id"])
    op.create_table(
        "owed_objects",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("object_key", TEXT, nullable=False),
        sa.Column("deletion_id", TEXT, nullable=False),
        sa.Column("table_name", TEXT, nullable=False),
        sa.Column("owed_since", INSTANT, server_default=NOW, nullable=False),
        sa.Column("next_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=ZERO, nullable=False),
        sa.Column("error", TEXT),
        sa.PrimaryKeyConstraint("id", name="pk_owed_objects"),
        sa.UniqueConstraint("tenant_id", "object_key", name="uq_owed_objects_tenant_id_object_key"),
        sa.ForeignKeyConstraint(
            ["deletion_id"], ["deletions.id"], name="fk_owed_objects_deletion_id_deletions"
        ),
    )
    op.create_index("ix_owed_objects_next_at", "owed_objects", ["next_at"])
    op.create_index("ix_owed_objects_deletion_id", "owed_objects", ["deletion_id"])


def _certificates() -> None:
    op.create_table(
        "deletion_certificates",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("number", BIG, nullable=False),
        sa.Column("cause", TEXT, nullable=False),
        sa.Column("object_id", TEXT),
        sa.Column("num_rows", BIG, nullable=False),
        sa.Column("num_objects", BIG, nullable=False),
        sa.Column("document", JSONB, nullable=False),
        sa.Column("digest", BYTES, nullable=False),
        sa.Column("issued_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_deletion_certificates"),
        sa.UniqueConstraint("tenant_id", "number", name="uq_deletion_certificates_tenant_id_number"),
        sa.CheckConstraint("number > 0", name=op.f("ck_deletion_certificates_number_positive")),
        sa.CheckConstraint("length(digest) = 32", name=op.f("ck_deletion_certificates_digest_length")),
    )
    op.create_index("ix_deletion_certificates_tenant_id_id", "deletion_certificates", ["tenant_id", "id"])
