"""Row-level security behind the repositories.

A transaction sees and writes the rows of the tenant that `rootstock.tenant` names; of every tenant where that
is '*'; of none where it is not set. FORCE holds the tables' owner to it, too. `secure_tenant_rows(table)` is
for later migrations.
"""

from __future__ import annotations

from importlib import import_module

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TABLES = (
    "adapter_events",
    "adapter_versions",
    "adapters",
    "api_keys",
    "audit_heads",
    "audit_log",
    "files",
    "invites",
    "jobs",
    "project_members",
    "projects",
    "service_accounts",
    "upload_parts",
    "uploads",
    "usage_records",
    "usage_records_default",
    "usage_rollups",
    "users",
)

# In sub-selects: evaluated once per statement, not per row.
SECURE = """
CREATE FUNCTION secure_tenant_rows(target regclass, tenant_column text DEFAULT 'tenant_id') RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', target);
    EXECUTE format('ALTER TABLE %s FORCE ROW LEVEL SECURITY', target);
    EXECUTE format(
        'CREATE POLICY tenant_rows ON %s USING (%I = (SELECT current_setting(''rootstock.tenant'', true)) '
        'OR (SELECT current_setting(''rootstock.tenant'', true)) = ''*'')', target, tenant_column);
END $$
"""

# The partitions of `months` months from `first`, those that are missing; how many they were. Rows of such a
# month that the default partition had to take meanwhile move into their own. Months begin in UTC. For the
# owner of the tables; the role that serves has one function per table, which runs as the owner. The tenant is
# set in the body: only a superuser may create a function with a SET clause for a custom parameter.
ENSURE_MONTHS = """
CREATE FUNCTION ensure_month_partitions(parent text, instant text, first date, months integer)
RETURNS integer
LANGUAGE plpgsql SET timezone = 'UTC' AS $$
DECLARE
    month_start timestamptz;
    month_end timestamptz;
    partition text;
    made integer := 0;
    tenant_before text := current_setting('rootstock.tenant', true);
BEGIN
    PERFORM set_config('rootstock.tenant', '*', true);
    -- One caller at a time: two would make the same table.
    PERFORM pg_advisory_xact_lock(hashtext('ensure_month_partitions'));
    FOR i IN 0 .. months - 1 LOOP
        month_start := date_trunc('month', first::timestamptz) + make_interval(months => i);
        month_end := month_start + interval '1 month';
        partition := parent || to_char(month_start, '"_y"YYYY"m"MM');
        CONTINUE WHEN to_regclass(quote_ident(partition)) IS NOT NULL;
        EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', partition, parent);
        EXECUTE format(
            'WITH moved AS (DELETE FROM %I WHERE %I >= %L AND %I < %L RETURNING *) '
            'INSERT INTO %I SELECT * FROM moved',
            parent || '_default', instant, month_start, instant, month_end, partition);
        EXECUTE format(
            'ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
            parent, partition, month_start, month_end);
        PERFORM secure_tenant_rows(quote_ident(partition)::regclass);
        made := made + 1;
    END LOOP;
    PERFORM set_config('rootstock.tenant', coalesce(tenant_before, ''), true);
    RETURN made;
END $$
"""

ENSURE_USAGE = """
CREATE FUNCTION ensure_usage_partitions(first date, months integer) RETURNS integer
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT
RETURN ensure_month_partitions('usage_records', 'submitted_at', first, months)
"""

SECURE_MONTHS = """
SELECT secure_tenant_rows(inhrelid::regclass) FROM pg_inherits
WHERE inhparent = 'usage_records'::regclass AND inhrelid <> 'usage_records_default'::regclass
"""
EXPOSE_MONTHS = """
DO $$
DECLARE
    partition regclass;
BEGIN
    FOR partition IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'usage_records'::regclass
        AND inhrelid <> 'usage_records_default'::regclass
    LOOP
        EXECUTE format('DROP POLICY tenant_rows ON %s', partition);
        EXECUTE format('ALTER TABLE %s NO FORCE ROW LEVEL SECURITY', partition);
        EXECUTE format('ALTER TABLE %s DISABLE ROW LEVEL SECURITY', partition);
    END LOOP;
END $$
"""


def upgrade() -> None:
    op.execute(SECURE)
    for table in TABLES:
        op.execute(f"SELECT secure_tenant_rows('{table}')")
    op.execute("SELECT secure_tenant_rows('tenants', 'id')")
    op.execute(SECURE_MONTHS)
    op.execute("DROP FUNCTION ensure_usage_partitions")
    op.execute(ENSURE_MONTHS)
    op.execute(ENSURE_USAGE)
    for function in ("secure_tenant_rows", "ensure_month_partitions", "ensure_usage_partitions"):
        op.execute(f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC")


def downgrade() -> None:
    op.execute("DROP FUNCTION ensure_usage_partitions")
    op.execute("DROP FUNCTION ensure_month_partitions")
    op.execute(import_module("migrations.versions.0001_tenants_adapters_ledger").ENSURE_PARTITIONS)
    op.execute(EXPOSE_MONTHS)
    for table in ("tenants", *TABLES):
        op.execute(f"DROP POLICY tenant_rows ON {table}")
        op.execute(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY")
    op.execute("DROP FUNCTION secure_tenant_rows")
