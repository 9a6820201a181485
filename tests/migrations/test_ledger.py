"""What 0007 makes of a ledger that was there before it, and what is left of it when it is undone."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, pool, text

from db import schema

BEFORE = (
    "INSERT INTO prices (id, effective_from, input, cached_input, output) VALUES ('prc_1', now(), 5, 5, 5)",
    "INSERT INTO usage_records (submitted_at, request_id, tenant_id, key_id, model, endpoint, service_tier,"
    " prompt_tokens, cached_tokens, completion_tokens, num_choices, preemptions, engine_id, recorded_at)"
    " SELECT at, 'r' || at, 'tnt_a', 'key_a', 'm', 'completions', 'default', 10, 4, 5, 1, 0, 'e', at"
    " FROM generate_series('2025-10-31T22:30Z'::timestamptz, '2025-11-01T01:30Z', '1 hour') AS at",
    "INSERT INTO usage_rollups (tenant_id, minute, key_id, model, service_tier,"
    " num_requests, prompt_tokens, cached_tokens, completion_tokens)"
    " SELECT 'tnt_a', submitted_at, 'key_a', 'm', 'default', 1, 10, 4, 5 FROM usage_records",
)
PRICED = (
    "INSERT INTO usage_records (submitted_at, request_id, tenant_id, key_id, model, endpoint, service_tier,"
    " prompt_tokens, cached_tokens, completion_tokens, num_choices, preemptions, engine_id, recorded_at,"
    " project_id, output_price)"
    " VALUES ('2025-10-31T22:30Z', 'new', 'tnt_a', 'key_a', 'm', 'completions', 'default', 1, 0, 7, 1, 0,"
    " 'e', now(), 'proj_a', 1000000)",
    "INSERT INTO usage_rollups (tenant_id, minute, key_id, model, service_tier, project_id,"
    " num_requests, prompt_tokens, cached_tokens, completion_tokens, cost)"
    " VALUES ('tnt_a', '2025-10-31T22:30Z', 'key_a', 'm', 'default', 'proj_a', 1, 1, 0, 7, 7)",
)
SUMS = "num_requests, prompt_tokens, cached_tokens, completion_tokens"


def rows(connection: Connection, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in connection.execute(text(query))]


@pytest.fixture
def old_url(owner_url: str) -> str:
    """A database as of 0006, with a ledger in it."""
    schema.downgrade(owner_url, "0006")
    with create_engine(owner_url, poolclass=pool.NullPool).begin() as connection:
        for statement in BEFORE:
            connection.execute(text(statement))
    return owner_url


def test_what_was_used_before_is_summed_and_free_and_stays_when_it_is_undone(old_url: str) -> None:
    schema.upgrade(old_url)
    engine = create_engine(old_url, poolclass=pool.NullPool)
    with engine.begin() as connection:
        assert rows(connection, "SELECT count(*), sum(cost), max(price_id) FROM usage_records") == [
            (4, 0, "")
        ]
        assert rows(connection, "SELECT adapter_surcharge, adapter_gb_day, calibration_job FROM prices") == [
            (0, 0, 0)
        ]
        hours = rows(
            connection, f"SELECT to_char(hour, 'DD HH24'), {SUMS} FROM usage_rollup_hours ORDER BY hour"
        )
        assert hours == [(hour, 1, 10, 4, 5) for hour in ("31 22", "31 23", "01 00", "01 01")]
        days = rows(connection, f"SELECT to_char(day, 'DD'), {SUMS} FROM usage_rollup_days ORDER BY day")
        assert days == [("31", 2, 20, 8, 10), ("01", 2, 20, 8, 10)]
        for statement in PRICED:
            connection.execute(text(statement))
        assert rows(connection, "SELECT cost, output_cost FROM usage_records WHERE request_id = 'new'") == [
            (7, 7)
        ]
    schema.downgrade(old_url, "0006")
    with engine.begin() as connection:
        assert rows(connection, f"SELECT {SUMS} FROM usage_rollups ORDER BY minute LIMIT 2") == [
            (2, 11, 4, 12),
            (1, 10, 4, 5),
        ]
        assert rows(connection, "SELECT count(*) FROM usage_records") == [(5,)]
        assert rows(connection, "SELECT ensure_usage_partitions('2025-10-01', 2)") == [(2,)]
        assert rows(connection, "SELECT count(*) FROM usage_records_default") == [(0,)]
