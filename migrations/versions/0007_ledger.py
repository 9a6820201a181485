"""Prices of every row, sums by hour and day, charges and reversals."""

from __future__ import annotations

from importlib import import_module

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

TEXT, INSTANT, COUNT = sa.Text(), sa.DateTime(timezone=True), sa.BigInteger()
NOW, EMPTY, ZERO = sa.text("now()"), sa.text("''"), sa.text("0")

# `billing.pricing.Rate.cost` in SQL. Division of numerics rounds; div does not.
COST = """
CREATE FUNCTION usage_cost(prompt bigint, cached bigint, completion bigint,
                           input bigint, cached_input bigint, output bigint, percent integer)
RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CAST(div((CAST(prompt - cached AS numeric) * input + CAST(cached AS numeric) * cached_input
                 + CAST(completion AS numeric) * output) * percent + 99999999, 100000000) AS bigint)
"""
# One kind of tokens' share of it, rounded down. What rounding adds falls to the input.
SHARE = """
CREATE FUNCTION usage_cost_share(tokens bigint, price bigint, percent integer)
RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CAST(div(CAST(tokens AS numeric) * price * percent, 100000000) AS bigint)
"""
PRICE_RECORDS = """
ALTER TABLE usage_records
    ADD COLUMN project_id text,
    ADD COLUMN user_id text,
    ADD COLUMN price_id text NOT NULL DEFAULT '',
    ADD COLUMN input_price bigint NOT NULL DEFAULT 0,
    ADD COLUMN cached_input_price bigint NOT NULL DEFAULT 0,
    ADD COLUMN output_price bigint NOT NULL DEFAULT 0,
    ADD COLUMN price_percent integer NOT NULL DEFAULT 100,
    ADD COLUMN cost bigint NOT NULL GENERATED ALWAYS AS (usage_cost(
        prompt_tokens, cached_tokens, completion_tokens,
        input_price, cached_input_price, output_price, price_percent)) STORED,
    ADD COLUMN cached_cost bigint NOT NULL GENERATED ALWAYS AS (usage_cost_share(
        cached_tokens, cached_input_price, price_percent)) STORED,
    ADD COLUMN output_cost bigint NOT NULL GENERATED ALWAYS AS (usage_cost_share(
        completion_tokens, output_price, price_percent)) STORED,
    ADD CONSTRAINT ck_usage_records_prices_sane CHECK (
        input_price >= 0 AND cached_input_price >= 0 AND output_price >= 0 AND price_percent >= 0)
"""
UNPRICE_RECORDS = """
ALTER TABLE usage_records
    DROP CONSTRAINT ck_usage_records_prices_sane,
    DROP COLUMN cost, DROP COLUMN cached_cost, DROP COLUMN output_cost,
    DROP COLUMN project_id, DROP COLUMN user_id, DROP COLUMN price_id,
    DROP COLUMN input_price, DROP COLUMN cached_input_price, DROP COLUMN output_price,
    DROP COLUMN price_percent
"""

REFUSE = """
CREATE FUNCTION refuse_ledger_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'what % has is never changed: add a reversal', TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation';
END
$$
"""
FIXED = (
    "submitted_at, request_id, tenant_id, key_id, model, adapter_id, adapter_version, adapter_digest, "
    "endpoint, service_tier, num_choices, engine_id, created_at, project_id, user_id, price_id, "
    "input_price, cached_input_price, output_price, price_percent"
)
GROWING = ("prompt_tokens", "cached_tokens", "completion_tokens", "preemptions", "recorded_at")


def _row(side: str) -> str:
    return ", ".join(f"{side}.{column}" for column in FIXED.split(", "))


# In the condition, which costs less than a call: almost every update is a request that grew.
KEEP_RECORDS = (
    f"""
CREATE TRIGGER usage_records_only_grow BEFORE UPDATE ON usage_records FOR EACH ROW
WHEN (({_row("old")}) IS DISTINCT FROM ({_row("new")})
      OR {" OR ".join(f"new.{column} < old.{column}" for column in GROWING)}
      OR old.finish_reason IS NOT NULL AND new.finish_reason IS NULL)
EXECUTE FUNCTION refuse_ledger_change()
""",
    "CREATE TRIGGER usage_records_stay BEFORE DELETE ON usage_records "
    "FOR EACH ROW EXECUTE FUNCTION refuse_ledger_change()",
    "CREATE TRIGGER usage_records_are_kept BEFORE TRUNCATE ON usage_records "
    "FOR EACH STATEMENT EXECUTE FUNCTION refuse_ledger_change()",
)

# As 0004 made it, but for columns that are generated and for triggers that keep rows where they are.
ENSURE_MONTHS = """
CREATE OR REPLACE FUNCTION ensure_month_partitions(parent text, instant text, first date, months integer)
RETURNS integer
LANGUAGE plpgsql SET timezone = 'UTC' AS $$
DECLARE
    month_start timestamptz;
    month_end timestamptz;
    partition text;
    written text;
    made integer := 0;
    tenant_before text := current_setting('rootstock.tenant', true);
BEGIN
    PERFORM set_config('rootstock.tenant', '*', true);
    -- One caller at a time: two would make the same table.
    PERFORM pg_advisory_xact_lock(hashtext('ensure_month_partitions'));
    SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) INTO written FROM pg_attribute
    WHERE attrelid = quote_ident(parent)::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '';
    FOR i IN 0 .. months - 1 LOOP
        month_start := date_trunc('month', first::timestamptz) + make_interval(months => i);
        month_end := month_start + interval '1 month';
        partition := parent || to_char(month_start, '"_y"YYYY"m"MM');
        CONTINUE WHEN to_regclass(quote_ident(partition)) IS NOT NULL;
        EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', partition, parent);
        EXECUTE format('ALTER TABLE %I DISABLE TRIGGER USER', parent || '_default');
        EXECUTE format(
            'WITH moved AS (DELETE FROM %I WHERE %I >= %L AND %I < %L RETURNING *) '
            'INSERT INTO %I (%s) SELECT %s FROM moved',
            parent || '_default', instant, month_start, instant, month_end, partition, written, written);
        EXECUTE format('ALTER TABLE %I ENABLE TRIGGER USER', parent || '_default');
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

# What is stored of a version, from when to when: its own row goes soon after the adapter is deleted, and
# storage is charged by the day.
WATCH_STORAGE = """
CREATE FUNCTION note_adapter_storage() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    was bigint := CASE WHEN TG_OP <> 'INSERT' AND old.state IN ('ready', 'disabled') THEN old.size END;
    now_is bigint := CASE WHEN TG_OP <> 'DELETE' AND new.state IN ('ready', 'disabled') THEN new.size END;
BEGIN
    IF was IS NOT DISTINCT FROM now_is THEN
        RETURN NULL;
    END IF;
    IF was IS NOT NULL THEN
        UPDATE adapter_storage SET until = greatest(now(), since)
        WHERE adapter_id = old.adapter_id AND version = old.version AND until IS NULL;
    END IF;
    IF now_is IS NOT NULL THEN
        INSERT INTO adapter_storage (tenant_id, adapter_id, version, size, since)
        VALUES (new.tenant_id, new.adapter_id, new.version, now_is, now());
    END IF;
    RETURN NULL;
END
$$
"""

# Told to whoever charges, in the transaction that ends the job.
WATCH_JOBS = """
CREATE FUNCTION note_calibration() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO calibrations_due (job_id, tenant_id, finished_at)
    VALUES (new.id, new.tenant_id, coalesce(new.finished_at, now())) ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$
"""


def upgrade() -> None:
    _prices()
    _records()
    _rollups()
    _charges()
    _reversals()
    _storage()
    _calibrations()


def _prices() -> None:
    for name in ("adapter_surcharge", "adapter_gb_day", "calibration_job"):
        op.add_column("prices", sa.Column(name, COUNT, server_default=ZERO, nullable=False))
    op.drop_constraint(op.f("ck_prices_amounts_sane"), "prices")
    op.create_check_constraint(
        op.f("ck_prices_amounts_sane"),
        "prices",
        "input >= 0 AND cached_input >= 0 AND output >= 0 AND adapter_surcharge >= 0 AND adapter_gb_day >= 0 "
        "AND calibration_job >= 0",
    )


def _records() -> None:
    op.execute(COST)
    op.execute(SHARE)
    op.execute(PRICE_RECORDS)
    op.execute(REFUSE)
    for trigger in KEEP_RECORDS:
        op.execute(trigger)
    op.execute(ENSURE_MONTHS)


KEYS = "key_id, model, service_tier, project_id, user_id, adapter_id"
SUMS = (
    "num_requests",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "cost",
    "cached_cost",
    "output_cost",
)


def _rollups() -> None:
    op.drop_constraint("pk_usage_rollups", "usage_rollups")
    for name in ("project_id", "user_id", "adapter_id"):
        op.add_column("usage_rollups", sa.Column(name, TEXT, server_default=EMPTY, nullable=False))
    for name in ("cost", "cached_cost", "output_cost"):
        op.add_column("usage_rollups", sa.Column(name, COUNT, server_default=ZERO, nullable=False))
    keys = KEYS.split(", ")
    op.create_primary_key("pk_usage_rollups", "usage_rollups", ["tenant_id", "minute", *keys])
    for unit in ("hour", "day"):
        table = f"usage_rollup_{unit}s"
        op.create_table(
            table,
            sa.Column("tenant_id", TEXT, nullable=False),
            sa.Column(unit, INSTANT, nullable=False),
            *(sa.Column(name, TEXT, nullable=False) for name in keys[:3]),
            *(sa.Column(name, TEXT, server_default=EMPTY, nullable=False) for name in keys[3:]),
            *(sa.Column(name, COUNT, nullable=False) for name in SUMS[:4]),
            *(sa.Column(name, COUNT, server_default=ZERO, nullable=False) for name in SUMS[4:]),
            sa.PrimaryKeyConstraint("tenant_id", unit, *keys, name=f"pk_{table}"),
        )
        op.execute(f"SELECT secure_tenant_rows('{table}')")
        op.execute(
            f"INSERT INTO {table} (tenant_id, {unit}, {KEYS}, {', '.join(SUMS)}) "
            f"SELECT tenant_id, date_trunc('{unit}', minute, 'UTC'), {KEYS}, "
            f"{', '.join(f'sum({name})' for name in SUMS)} FROM usage_rollups "
            f"GROUP BY tenant_id, date_trunc('{unit}', minute, 'UTC'), {KEYS}"
        )


def _charges() -> None:
    op.create_table(
        "charges",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("quantity", COUNT, nullable=False),
        sa.Column("price_id", TEXT, nullable=False),
        sa.Column("unit_price", COUNT, nullable=False),
        sa.Column("cost", COUNT, nullable=False),
        sa.Column("reference", TEXT, nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_charges"),
        sa.CheckConstraint("kind IN ('adapter_storage', 'calibration')", name=op.f("ck_charges_kind_known")),
        sa.CheckConstraint(
            "quantity >= 0 AND unit_price >= 0 AND cost >= 0", name=op.f("ck_charges_amounts_sane")
        ),
    )
    op.create_index("ix_charges_tenant_id_at", "charges", ["tenant_id", "at"])
    _keep("charges")
    op.create_table(
        "charged_days",
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("charged_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("day", name="pk_charged_days"),
    )


def _reversals() -> None:
    op.create_table(
        "reversals",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("submitted_at", INSTANT),
        sa.Column("request_id", TEXT),
        sa.Column("charge_id", TEXT),
        *(sa.Column(name, TEXT, server_default=EMPTY, nullable=False) for name in KEYS.split(", ")),
        *(sa.Column(name, COUNT, server_default=ZERO, nullable=False) for name in SUMS if name != "cost"),
        sa.Column("cost", COUNT, nullable=False),
        sa.Column("reason", TEXT, nullable=False),
        sa.Column("actor", TEXT, nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_reversals"),
        sa.UniqueConstraint("submitted_at", "request_id", name="uq_reversals_submitted_at_request_id"),
        sa.UniqueConstraint("charge_id", name="uq_reversals_charge_id"),
        sa.ForeignKeyConstraint(["charge_id"], ["charges.id"], name="fk_reversals_charge_id_charges"),
        sa.CheckConstraint(
            "(request_id IS NULL) = (submitted_at IS NULL) AND (request_id IS NULL) <> (charge_id IS NULL)",
            name=op.f("ck_reversals_of_one"),
        ),
    )
    op.create_index("ix_reversals_tenant_id_at", "reversals", ["tenant_id", "at"])
    _keep("reversals")


def _keep(table: str) -> None:
    op.execute(f"SELECT secure_tenant_rows('{table}')")
    op.execute(
        f"CREATE TRIGGER {table}_stay BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_ledger_change()"
    )


def _storage() -> None:
    op.create_table(
        "adapter_storage",
        sa.Column("adapter_id", TEXT, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("since", INSTANT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("size", COUNT, nullable=False),
        sa.Column("until", INSTANT),
        sa.Column("number", COUNT, sa.Identity(always=True), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_adapter_storage"),
        sa.CheckConstraint("until >= since", name=op.f("ck_adapter_storage_ends_later")),
    )
    op.create_index("ix_adapter_storage_adapter_id_version", "adapter_storage", ["adapter_id", "version"])
    op.create_index("ix_adapter_storage_until", "adapter_storage", ["until"])
    op.execute("SELECT secure_tenant_rows('adapter_storage')")
    op.execute(
        "INSERT INTO adapter_storage (tenant_id, adapter_id, version, size, since) "
        "SELECT tenant_id, adapter_id, version, size, now() FROM adapter_versions "
        "WHERE size IS NOT NULL AND state IN ('ready', 'disabled')"
    )
    op.execute(WATCH_STORAGE)
    op.execute(
        "CREATE TRIGGER adapter_versions_are_stored AFTER INSERT OR DELETE OR UPDATE OF state, size "
        "ON adapter_versions FOR EACH ROW EXECUTE FUNCTION note_adapter_storage()"
    )


def _calibrations() -> None:
    op.create_table(
        "calibrations_due",
        sa.Column("job_id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("finished_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("job_id", name="pk_calibrations_due"),
    )
    op.execute("SELECT secure_tenant_rows('calibrations_due')")
    op.execute(WATCH_JOBS)
    op.execute(
        "CREATE TRIGGER jobs_are_charged AFTER UPDATE OF status ON jobs FOR EACH ROW "
        "WHEN (new.status = 'succeeded' AND old.status <> 'succeeded') EXECUTE FUNCTION note_calibration()"
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER jobs_are_charged ON jobs")
    op.execute("DROP FUNCTION note_calibration")
    op.execute("DROP TRIGGER adapter_versions_are_stored ON adapter_versions")
    op.execute("DROP FUNCTION note_adapter_storage")
    for table in ("calibrations_due", "adapter_storage", "reversals", "charged_days", "charges"):
        op.drop_table(table)
    _narrow_rollups()
    for trigger in ("usage_records_only_grow", "usage_records_stay", "usage_records_are_kept"):
        op.execute(f"DROP TRIGGER {trigger} ON usage_records")
    op.execute("DROP FUNCTION refuse_ledger_change")
    op.execute(UNPRICE_RECORDS)
    op.execute("DROP FUNCTION usage_cost")
    op.execute("DROP FUNCTION usage_cost_share")
    before = import_module("migrations.versions.0004_row_security").ENSURE_MONTHS
    op.execute(before.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"))
    op.drop_constraint(op.f("ck_prices_amounts_sane"), "prices")
    for name in ("adapter_surcharge", "adapter_gb_day", "calibration_job"):
        op.drop_column("prices", name)
    op.create_check_constraint(
        op.f("ck_prices_amounts_sane"), "prices", "input >= 0 AND cached_input >= 0 AND output >= 0"
    )


def _narrow_rollups() -> None:
    for unit in ("hour", "day"):
        op.drop_table(f"usage_rollup_{unit}s")
    keys = "tenant_id, minute, key_id, model, service_tier"
    sums = ", ".join(f"sum({name})::bigint AS {name}" for name in SUMS[:4])
    op.execute(
        "CREATE TEMPORARY TABLE narrow ON COMMIT DROP AS "
        f"SELECT {keys}, {sums} FROM usage_rollups GROUP BY {keys}"
    )
    op.execute("DELETE FROM usage_rollups")
    op.drop_constraint("pk_usage_rollups", "usage_rollups")
    for name in ("project_id", "user_id", "adapter_id", "cost", "cached_cost", "output_cost"):
        op.drop_column("usage_rollups", name)
    op.create_primary_key("pk_usage_rollups", "usage_rollups", keys.split(", "))
    op.execute(f"INSERT INTO usage_rollups ({keys}, {', '.join(SUMS[:4])}) SELECT * FROM narrow")
