"""Usage and money in the ledger's tables, put there as if metered; a tenant that is billed by the meter."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import text

from db.session import EVERY_TENANT, Database

TENANT = "ten_a"

_ROLLUP = """
    INSERT INTO {table} AS sums (tenant_id, {unit}, key_id, model, service_tier, num_requests, prompt_tokens,
                                 cached_tokens, completion_tokens, cost)
    VALUES (:tenant, date_trunc('{unit}', CAST(:at AS timestamptz), 'UTC'), 'key_a', 'sapling', 'default',
            1, 1, 0, 1, :cost)
    ON CONFLICT (tenant_id, {unit}, key_id, model, service_tier, project_id, user_id, adapter_id)
    DO UPDATE SET cost = sums.cost + excluded.cost
"""
_GRAINS = (("usage_rollups", "minute"), ("usage_rollup_hours", "hour"), ("usage_rollup_days", "day"))


async def make_tenant(database: Database, tenant: str = TENANT) -> None:
    async with database.write(EVERY_TENANT) as session:
        await session.execute(
            text("INSERT INTO tenants (id, name) VALUES (:id, :name)"), {"id": tenant, "name": f"of {tenant}"}
        )


async def use(database: Database, at: datetime, cost: int, tenant: str = TENANT) -> None:
    """Usage at `at` that cost so much; below zero, a reversal."""
    async with database.write(EVERY_TENANT) as session:
        for table, unit in _GRAINS:
            statement = text(_ROLLUP.format(table=table, unit=unit))
            await session.execute(statement, {"tenant": tenant, "at": at, "cost": cost})


async def charge(database: Database, at: datetime, cost: int, tenant: str = TENANT) -> None:
    """Storage."""
    statement = """
        INSERT INTO charges (id, tenant_id, kind, at, quantity, price_id, unit_price, cost, reference)
        VALUES (:id, :tenant, 'adapter_storage', :at, 1, 'price', 1, :cost, 'adp_a@1')
    """
    async with database.write(EVERY_TENANT) as session:
        values = {"id": f"storage:{at.isoformat()}", "tenant": tenant, "at": at, "cost": cost}
        await session.execute(text(statement), values)


async def reverse_charge(database: Database, at: datetime, charged_at: datetime, cost: int) -> None:
    statement = """
        INSERT INTO reversals (id, tenant_id, at, charge_id, cost, reason, actor)
        VALUES ('rev_a', :tenant, :at, :charge, :cost, 'wrong', 'operator:operator')
    """
    async with database.write(EVERY_TENANT) as session:
        values = {
            "tenant": TENANT, "at": at, "charge": f"storage:{charged_at.isoformat()}", "cost": cost,
        }  # fmt: skip
        await session.execute(text(statement), values)


async def prepaid(database: Database, since: datetime, until: datetime | None) -> None:
    async with database.write(EVERY_TENANT) as session:
        await session.execute(
            text("INSERT INTO prepaid_periods (tenant_id, since, until) VALUES (:tenant, :since, :until)"),
            {"tenant": TENANT, "since": since, "until": until},
        )


async def events(database: Database) -> list[tuple[datetime, int, int, str]]:
    """(hour, number, value, state) of all that was planned."""
    query = "SELECT hour, number, value, state FROM meter_events ORDER BY tenant_id, hour, number"
    async with database.read(EVERY_TENANT) as session:
        return [tuple(row) for row in await session.execute(text(query))]
