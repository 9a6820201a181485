"""A small business with books that balance, for a test to damage."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
import redis.asyncio
from sqlalchemy import text

from billing.charges import ChargeService
from billing.folding import fold, measure
from billing.rates import RATE_LABEL, Rate
from billing.reconciliation.differences import Difference, Report
from billing.reconciliation.service import ReconciliationService
from billing.repository import LedgerWriter
from db.session import EVERY_TENANT, Database
from engine.protocol import UsageEvent
from tests.support.journal import usage_event

DAY = datetime(2026, 11, 10, tzinfo=UTC)
"""The first of two days that are compared."""
END = DAY + timedelta(days=2)
NOW = END + timedelta(hours=5)
RATE = Rate("prc_a", 3_000_000, 1_000_000, 7_000_000)
TENANTS = ("tnt_a", "tnt_b")


@dataclass
class Books:
    """All there is, and hands to damage it with: those of the database's owner."""

    database: Database
    owner: Database
    redis: redis.asyncio.Redis
    service: ReconciliationService

    async def reconcile(self) -> Report:
        return await self.service.reconcile(DAY, END)

    async def differences(self) -> list[Difference]:
        return list((await self.reconcile()).differences)

    async def damage(self, statement: str, **values: object) -> int:
        """Rows that were changed, past every trigger."""
        async with self.owner.write(EVERY_TENANT) as session:
            await session.execute(text("SET LOCAL session_replication_role = replica"))
            return (await session.execute(text(statement), values)).rowcount  # type: ignore[attr-defined]


def event(name: str, tenant: str, at: datetime, **changes: object) -> UsageEvent:
    """A request that ended, on the base."""
    made = usage_event(name, tenant=tenant, submitted_at=at.timestamp(), finish_reason="stop", **changes)  # type: ignore[arg-type]
    made.labels.update({RATE_LABEL: RATE.label, "adapter_id": "", "adapter_version": ""})
    return made


@pytest.fixture
async def books(database: Database, owner_database: Database, redis_client: redis.asyncio.Redis) -> Books:
    async with owner_database.write(EVERY_TENANT) as session:
        for tenant in TENANTS:
            await session.execute(
                text("INSERT INTO tenants (id, name, created_at) VALUES (:id, :id, :at)"),
                {"id": tenant, "at": DAY},
            )
        await session.execute(
            text(
                "INSERT INTO prices (id, effective_from, input, cached_input, output, adapter_surcharge, "
                "adapter_gb_day, calibration_job) "
                "VALUES ('prc_a', :at, 3000000, 1000000, 7000000, 0, 40000, 500000)"
            ),
            {"at": DAY - timedelta(days=30)},
        )
        await session.execute(
            text(
                "INSERT INTO adapter_storage (tenant_id, adapter_id, version, size, since) "
                "VALUES ('tnt_a', 'adp_a', 1, 1000000000, :at)"
            ),
            {"at": DAY},
        )
    async with database.write(EVERY_TENANT) as session:
        events = [
            event(f"req-{number}", TENANTS[number % 2], DAY + number * timedelta(hours=5), cached=number % 3)
            for number in range(9)
        ]
        await LedgerWriter(session).upsert(fold(map(measure, events)))
    await ChargeService(database).charge_storage(NOW)
    service = ReconciliationService(database, redis_client, clock=lambda: NOW)
    return Books(database, owner_database, redis_client, service)
