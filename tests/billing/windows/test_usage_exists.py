"""Budgets of those who have used nothing begin at nothing, without a sum; everybody else's is summed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import redis.asyncio
from sqlalchemy import event

from billing.folding import fold, measure
from billing.models import Charge
from billing.repository import LedgerWriter
from billing.windows.usage_exists import UsageExists
from db.errors import DatabaseUnavailable
from db.session import EVERY_TENANT, Database
from tenants.limits.kinds import Limit, Metric
from tenants.service import account_services
from tests.support.journal import usage_event
from tests.tenants.conftest import SECRET

START = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=2)


class Sums:
    """Whose sums were asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, datetime]] = []

    async def __call__(self, tenant_id: str, limit: Limit, start: datetime) -> int:
        self.asked.append((tenant_id, start))
        return 7


@pytest.fixture
def sums() -> Sums:
    return Sums()


@pytest.fixture
async def begun(database: Database, sums: Sums) -> AsyncIterator[UsageExists]:
    made = UsageExists(database, sums)
    yield made
    await made.close()


@pytest.fixture
async def tenants(database: Database, redis_client: redis.asyncio.Redis) -> list[str]:
    """Four."""
    service = account_services(database, redis_client, SECRET).tenants
    return [(await service.create_tenant(name)).id for name in ("ash", "birch", "cedar", "dogwood")]


def spend(tenant_id: str, metric: Metric = Metric.SPEND_PER_MONTH) -> Limit:
    return Limit("tenant", tenant_id, "", metric, 1)


async def test_only_those_who_used_or_paid_something_since_are_summed(
    database: Database, begun: UsageExists, sums: Sums, tenants: list[str]
) -> None:
    used, paid, before, idle = tenants
    labels = {"key_id": "k", "model": "sapling"}
    async with database.write(EVERY_TENANT) as session:
        events = [
            usage_event("a", tenant=used, submitted_at=START.timestamp(), labels=labels, prompt=1),
            usage_event("b", tenant=before, submitted_at=START.timestamp() - 60, labels=labels, prompt=1),
        ]
        await LedgerWriter(session).upsert(fold(map(measure, events)))
        session.add(
            Charge(
                id="calibration:job",
                tenant_id=paid,
                kind="calibration",
                at=START + timedelta(minutes=1),
                quantity=1,
                price_id="prc",
                unit_price=5,
                cost=5,
                reference="job",
            )
        )
    queries: list[str] = []
    event.listen(database.engine.sync_engine, "before_cursor_execute", lambda *call: queries.append(call[2]))
    found = await asyncio.gather(*(begun(tenant_id, spend(tenant_id), START) for tenant_id in tenants))
    assert found == [7, 7, 0, 0]
    assert sums.asked == [(used, START), (paid, START)]
    assert sum("unnest" in query for query in queries) == 1, "one query for all of them"
    assert await begun(before, spend(before), START - timedelta(hours=1)) == 7
    assert await begun(idle, spend(idle), START - timedelta(days=40)) == 0


async def test_a_balance_is_always_summed(begun: UsageExists, sums: Sums, tenants: list[str]) -> None:
    limit = spend(tenants[0], Metric.PREPAID_BALANCE)
    assert await begun(tenants[0], limit, START) == 7


async def test_nothing_is_made_up_while_the_ledger_is_away(sums: Sums) -> None:
    nowhere = Database("postgresql+psycopg://nobody@127.0.0.1:1/nowhere")
    begun = UsageExists(nowhere, sums)
    with pytest.raises(DatabaseUnavailable):
        await begun("tnt_one", spend("tnt_one"), START)
    await begun.close()
    await nowhere.close()
