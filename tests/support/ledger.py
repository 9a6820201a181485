"""What tests ask of the ledger: whether its sums are its rows', and to forget what it has."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from db.session import EVERY_TENANT, Database

KEPT = ("usage_records", "reversals", "charges")
"""Tables whose triggers keep what is in them."""
SUMMED = ("usage_rollups", "usage_rollup_hours", "usage_rollup_days")
_COLUMNS = "tenant_id, {unit}, key_id, model, service_tier, project_id, user_id, adapter_id"
_SUMS = (
    "num_requests", "prompt_tokens", "cached_tokens", "completion_tokens",
    "cost", "cached_cost", "output_cost", "surcharge",
)  # fmt: skip
_OF_ROWS = """
    SELECT tenant_id, date_trunc('{unit}', at, 'UTC') AS {unit}, key_id, model, service_tier,
           coalesce(project_id, '') AS project_id, coalesce(user_id, '') AS user_id,
           coalesce(adapter_id, '') AS adapter_id, {sums}
    FROM (
        SELECT tenant_id, submitted_at AS at, key_id, model, service_tier, project_id, user_id, adapter_id,
               1 AS num_requests, prompt_tokens, cached_tokens, completion_tokens, cost + surcharge AS cost,
               cached_cost, output_cost, surcharge
        FROM usage_records
        UNION ALL
        SELECT tenant_id, at, key_id, model, service_tier, project_id, user_id, adapter_id, -num_requests,
               -prompt_tokens, -cached_tokens, -completion_tokens, -cost, -cached_cost, -output_cost,
               -surcharge
        FROM reversals WHERE charge_id IS NULL
    ) AS lines
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 ORDER BY 1, 2, 3, 4, 5, 6, 7, 8
"""


async def assert_rollups_are_the_ledgers(database: Database) -> None:
    """Those of minutes, hours and days, row by row."""
    for table, unit in zip(SUMMED, ("minute", "hour", "day"), strict=True):
        columns = f"{_COLUMNS.format(unit=unit)}, {', '.join(_SUMS)}"
        rows = await query(database, f"SELECT {columns} FROM {table} ORDER BY 1, 2, 3, 4, 5, 6, 7, 8")
        sums = ", ".join(f"CAST(sum({name}) AS bigint) AS {name}" for name in _SUMS)
        assert rows == await query(database, _OF_ROWS.format(unit=unit, sums=sums)), table


async def query(database: Database, statement: str) -> list[dict[str, Any]]:
    async with database.read(EVERY_TENANT) as session:
        return [dict(row) for row in (await session.execute(text(statement))).mappings()]


async def forget_ledger(owner_database: Database) -> None:
    """Empty its tables, which only a superuser can, and only on purpose: triggers keep what is in them."""
    async with owner_database.write(EVERY_TENANT) as session:
        await session.execute(text("SET LOCAL session_replication_role = replica"))
        for table in (*KEPT, *SUMMED, "share_earnings"):
            await session.execute(text(f"DELETE FROM {table}"))
