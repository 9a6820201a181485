"""Calls that were answered with an error, by day, and their counts by hour.

The role that serves owns no tables: it creates and drops the days' partitions by functions that run as the
owner.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None
expand_only = True

TEXT, INSTANT, COUNT = sa.Text(), sa.DateTime(timezone=True), sa.BigInteger()

# Later queries queue behind a wait for the table's lock, so that wait is short.
ENSURE_DAYS = """
CREATE FUNCTION ensure_refused_partitions(first date, days integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET timezone = 'UTC' SET lock_timeout = '5s' AS $$
DECLARE
    day_start timestamptz;
    day_end timestamptz;
    partition text;
    made integer := 0;
    tenant_before text := current_setting('rootstock.tenant', true);
BEGIN
    PERFORM set_config('rootstock.tenant', '*', true);
    PERFORM pg_advisory_xact_lock(hashtext('refused_partitions'));
    FOR i IN 0 .. days - 1 LOOP
        day_start := first::timestamptz + make_interval(days => i);
        day_end := day_start + interval '1 day';
        partition := 'refused_requests' || to_char(day_start, '"_y"YYYY"m"MM"d"DD');
        CONTINUE WHEN to_regclass(quote_ident(partition)) IS NOT NULL;
        EXECUTE format('CREATE TABLE %I (LIKE refused_requests INCLUDING ALL)', partition);
        EXECUTE format(
            'WITH moved AS (DELETE FROM refused_requests_default WHERE at >= %L AND at < %L RETURNING *) '
            'INSERT INTO %I SELECT * FROM moved', day_start, day_end, partition);
        EXECUTE format(
            'ALTER TABLE refused_requests ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
            partition, day_start, day_end);
        PERFORM secure_tenant_rows(quote_ident(partition)::regclass);
        made := made + 1;
    END LOOP;
    PERFORM set_config('rootstock.tenant', coalesce(tenant_before, ''), true);
    RETURN made;
END $$
"""
DROP_DAYS = """
CREATE FUNCTION drop_refused_partitions(before date) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET timezone = 'UTC' SET lock_timeout = '5s' AS $$
DECLARE
    partition text;
    dropped integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('refused_partitions'));
    FOR partition IN
        SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
        WHERE inhparent = 'refused_requests'::regclass
          AND relname ~ '^refused_requests_y[0-9]{4}m[0-9]{2}d[0-9]{2}$'
          AND to_date(right(relname, 11), '"y"YYYY"m"MM"d"DD') < before
        ORDER BY relname
    LOOP
        EXECUTE format('DROP TABLE %I', partition);
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END $$
"""
FUNCTIONS = ("ensure_refused_partitions", "drop_refused_partitions")


def upgrade() -> None:
    texts = ("key_id", "project_id", "user_id", "method", "route", "path", "model", "service_tier")
    op.create_table(
        "refused_requests",
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("request_id", TEXT, nullable=False),
        *(sa.Column(name, TEXT, nullable=False) for name in texts),
        sa.Column("status", sa.Integer(), nullable=False),
        *(sa.Column(name, TEXT, nullable=False) for name in ("code", "message", "generation_id")),
        sa.PrimaryKeyConstraint("tenant_id", "at", "request_id", name="pk_refused_requests"),
        postgresql_partition_by="RANGE (at)",
    )
    op.create_index(
        "ix_refused_requests_tenant_id_request_id", "refused_requests", ["tenant_id", "request_id"]
    )
    for name in ("code", "key_id", "model"):
        op.create_index(
            f"ix_refused_requests_tenant_id_{name}_at", "refused_requests", ["tenant_id", name, "at"]
        )
    op.execute("CREATE TABLE refused_requests_default PARTITION OF refused_requests DEFAULT")
    op.create_table(
        "refused_hours",
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("hour", INSTANT, nullable=False),
        sa.Column("source", TEXT, nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("code", TEXT, nullable=False),
        sa.Column("refused", COUNT, nullable=False),
        sa.Column("unlisted", COUNT, nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "hour", "source", "status", "code", name="pk_refused_hours"),
    )
    op.create_index("ix_refused_hours_hour", "refused_hours", ["hour"])
    for table in ("refused_requests", "refused_requests_default", "refused_hours"):
        op.execute(f"SELECT secure_tenant_rows('{table}')")
    for statement in (ENSURE_DAYS, DROP_DAYS):
        op.execute(statement)
    for function in FUNCTIONS:
        op.execute(f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC")
    op.execute("SELECT ensure_refused_partitions(CAST(now() AT TIME ZONE 'UTC' AS date), 3)")


def downgrade() -> None:
    for function in FUNCTIONS:
        op.execute(f"DROP FUNCTION {function}")
    op.drop_table("refused_hours")
    op.drop_table("refused_requests")
