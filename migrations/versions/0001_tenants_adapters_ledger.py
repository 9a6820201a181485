"""Tenants, users, keys; adapters and their versions; the ledger in monthly partitions, and its rollups."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)
NOW = sa.text("now()")

# Makes the partitions of `months` months from `first`, those that are missing, and returns how many they
# were. Rows of such a month that the default partition had to take meanwhile move into their own. Months
# begin in UTC.
ENSURE_PARTITIONS = """
CREATE FUNCTION ensure_usage_partitions(first date, months integer) RETURNS integer
LANGUAGE plpgsql SET timezone = 'UTC' AS $$
DECLARE
    month_start timestamptz;
    month_end timestamptz;
    partition text;
    made integer := 0;
BEGIN
    -- One caller at a time: two would make the same table.
    PERFORM pg_advisory_xact_lock(hashtext('ensure_usage_partitions'));
    FOR i IN 0 .. months - 1 LOOP
        month_start := date_trunc('month', first::timestamptz) + make_interval(months => i);
        month_end := month_start + interval '1 month';
        partition := 'usage_records_' || to_char(month_start, '"y"YYYY"m"MM');
        CONTINUE WHEN to_regclass(quote_ident(partition)) IS NOT NULL;
        EXECUTE format('CREATE TABLE %I (LIKE usage_records INCLUDING ALL)', partition);
        EXECUTE format(
            'WITH moved AS ('
            'DELETE FROM usage_records_default WHERE submitted_at >= %L AND submitted_at < %L RETURNING *) '
            'INSERT INTO %I SELECT * FROM moved', month_start, month_end, partition);
        EXECUTE format(
            'ALTER TABLE usage_records ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
            partition, month_start, month_end);
        made := made + 1;
    END LOOP;
    RETURN made;
END $$
"""


def upgrade() -> None:
    op.create_table(
        "tenants",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("disabled_at", INSTANT),
        sa.PrimaryKeyConstraint("id", name="pk_tenants"),
        sa.UniqueConstraint("name", name="uq_tenants_name"),
    )
    op.create_table(
        "users",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("email", sa.Text(), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("disabled_at", INSTANT),
        sa.PrimaryKeyConstraint("id", name="pk_users"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_users_tenant_id_tenants"),
        sa.UniqueConstraint("email", name="uq_users_email"),
        sa.CheckConstraint("role IN ('admin', 'developer')", name=op.f("ck_users_role_known")),
        sa.CheckConstraint("email = lower(email)", name=op.f("ck_users_email_lower")),
    )
    op.create_index("ix_users_tenant_id", "users", ["tenant_id"])
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("scopes", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("expires_at", INSTANT),
        sa.Column("revoked_at", INSTANT),
        sa.Column("last_used_at", INSTANT),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_api_keys_tenant_id_tenants"),
        sa.UniqueConstraint("digest", name="uq_api_keys_digest"),
        sa.CheckConstraint("kind IN ('inference', 'admin')", name=op.f("ck_api_keys_kind_known")),
        sa.CheckConstraint("length(digest) = 32", name=op.f("ck_api_keys_digest_length")),
    )
    op.create_index("ix_api_keys_tenant_id_id", "api_keys", ["tenant_id", "id"])
    op.create_table(
        "adapters",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("base", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("active_version", sa.Integer()),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("disabled_at", INSTANT),
        sa.PrimaryKeyConstraint("id", name="pk_adapters"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_adapters_tenant_id_tenants"),
        sa.UniqueConstraint("tenant_id", "base", "name", name="uq_adapters_tenant_id_base_name"),
        sa.UniqueConstraint("id", "tenant_id", name="uq_adapters_id_tenant_id"),
    )
    op.create_table(
        "adapter_versions",
        sa.Column("adapter_id", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text()),
        sa.Column("rank", sa.Integer()),
        sa.Column("base_digest", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger()),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("adapter_id", "version", name="pk_adapter_versions"),
        sa.ForeignKeyConstraint(
            ["adapter_id", "tenant_id"],
            ["adapters.id", "adapters.tenant_id"],
            name="fk_adapter_versions_adapter_id_tenant_id_adapters",
        ),
        sa.CheckConstraint(
            "state IN ('pending', 'ready', 'failed')", name=op.f("ck_adapter_versions_state_known")
        ),
        sa.CheckConstraint(
            "state <> 'ready' OR (digest IS NOT NULL AND rank IS NOT NULL)",
            name=op.f("ck_adapter_versions_ready_is_packed"),
        ),
        sa.CheckConstraint("version > 0", name=op.f("ck_adapter_versions_version_positive")),
        sa.CheckConstraint("rank > 0", name=op.f("ck_adapter_versions_rank_positive")),
    )
    _create_ledger()


def _create_ledger() -> None:
    op.create_table(
        "usage_records",
        sa.Column("submitted_at", INSTANT, nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("adapter_id", sa.Text()),
        sa.Column("adapter_version", sa.Integer()),
        sa.Column("adapter_digest", sa.Text()),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("service_tier", sa.Text(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("num_choices", sa.Integer(), nullable=False),
        sa.Column("finish_reason", sa.Text()),
        sa.Column("queue_seconds", sa.Double()),
        sa.Column("first_token_seconds", sa.Double()),
        sa.Column("total_seconds", sa.Double()),
        sa.Column("preemptions", sa.Integer(), nullable=False),
        sa.Column("engine_id", sa.Text(), nullable=False),
        sa.Column("recorded_at", INSTANT, nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("submitted_at", "request_id", name="pk_usage_records"),
        sa.CheckConstraint(
            "prompt_tokens >= 0 AND completion_tokens >= 0 AND cached_tokens BETWEEN 0 AND prompt_tokens",
            name=op.f("ck_usage_records_counts_sane"),
        ),
        postgresql_partition_by="RANGE (submitted_at)",
    )
    op.create_index("ix_usage_records_tenant_id_submitted_at", "usage_records", ["tenant_id", "submitted_at"])
    # Whatever month nobody made a partition for: late, and then moved, never lost.
    op.execute("CREATE TABLE usage_records_default PARTITION OF usage_records DEFAULT")
    op.execute(ENSURE_PARTITIONS)
    op.execute("SELECT ensure_usage_partitions(CAST(now() AT TIME ZONE 'UTC' AS date), 3)")
    op.create_table(
        "usage_rollups",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("minute", INSTANT, nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("service_tier", sa.Text(), nullable=False),
        sa.Column("num_requests", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "tenant_id", "minute", "key_id", "model", "service_tier", name="pk_usage_rollups"
        ),
    )


def downgrade() -> None:
    op.drop_table("usage_rollups")
    op.execute("DROP FUNCTION ensure_usage_partitions")
    op.drop_table("usage_records")
    op.drop_table("adapter_versions")
    op.drop_table("adapters")
    op.drop_table("api_keys")
    op.drop_table("users")
    op.drop_table("tenants")
