"""Names the ledger's rollup tables by minute, hour and day, with their keys and sums."""

from __future__ import annotations

from billing.models import RollupSums, ShareEarning, UsageRollup, UsageRollupDay, UsageRollupHour
from db.rollup_intervals import Unit

ROLLUPS: dict[Unit, type[RollupSums]] = {
    "minute": UsageRollup,
    "hour": UsageRollupHour,
    "day": UsageRollupDay,
}
TABLES: dict[Unit, str] = {
    "minute": UsageRollup.__tablename__,
    "hour": UsageRollupHour.__tablename__,
    "day": UsageRollupDay.__tablename__,
}
KEYS = ("key_id", "model", "service_tier", "project_id", "user_id", "adapter_id")
"""The keys that usage can be grouped by, besides its tenant and time."""
SUMS = (
    "num_requests", "prompt_tokens", "cached_tokens", "completion_tokens",
    "cost", "cached_cost", "output_cost", "surcharge",
)  # fmt: skip


def add_sql(unit: Unit, source: str) -> str:
    """Returns an INSERT that adds `source`, rows of (tenant_id, at, *KEYS, *SUMS), to the sums by `unit`."""
    keys, sums = ", ".join(KEYS), ", ".join(f"sum({name})" for name in SUMS)
    return f"""
        INSERT INTO {TABLES[unit]} AS sums (tenant_id, {unit}, {keys}, {", ".join(SUMS)})
        SELECT tenant_id, date_trunc('{unit}', at, 'UTC'), {keys}, {sums}
        FROM {source} GROUP BY tenant_id, date_trunc('{unit}', at, 'UTC'), {keys}
        ON CONFLICT (tenant_id, {unit}, {keys}) DO UPDATE SET
            {", ".join(f"{name} = sums.{name} + excluded.{name}" for name in SUMS)}
    """


EARNING_SUMS = ("num_requests", "prompt_tokens", "completion_tokens", "surcharge", "owner_part")


def earn_sql(source: str) -> str:
    """Returns an INSERT that adds `source`, rows of (owner_id, at, share_id, model, *EARNING_SUMS), to what
    the owners of shared adapters earned.
    """
    return f"""
        INSERT INTO {ShareEarning.__tablename__} AS sums
            (tenant_id, day, share_id, model, {", ".join(EARNING_SUMS)})
        SELECT owner_id, date_trunc('day', at, 'UTC'), share_id, model,
               {", ".join(f"sum({name})" for name in EARNING_SUMS)}
        FROM {source} GROUP BY owner_id, date_trunc('day', at, 'UTC'), share_id, model
        ON CONFLICT (tenant_id, day, share_id, model) DO UPDATE SET
            {", ".join(f"{name} = sums.{name} + excluded.{name}" for name in EARNING_SUMS)}
    """
