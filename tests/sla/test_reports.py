from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis.asyncio
from sqlalchemy import text

from db.session import EVERY_TENANT, Database
from engine.protocol import PriorityClass
from sla.errors import InvalidMonth
from sla.measures import Counts
from sla.repository import SlaRepository, SlaWriter
from sla.service import LATEST_MINUTES, SlaReports
from tenants.errors import TenantNotFound
from tenants.plans import PlanChanges, PlanService
from tenants.service import TenantService
from tenants.tier_terms import read

NOW = datetime(2026, 5, 17, 12, 0, 30, tzinfo=UTC)
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
TERMS = {
    "priority": {
        "allowed": True,
        "ttft_target_ms": 200,
        "min_output_tokens_per_second": 50,
        "availability_ppm": 999_000,
        "output_rate_ppm": 900_000,
        "credits": [[999_000, 10], [950_000, 30]],
    }
}


@pytest.fixture
async def tenant(database: Database, redis_client: redis.asyncio.Redis, owner_database: Database) -> str:
    """On a plan that promises something, as long as is known."""
    plans = PlanService(database, redis_client)
    await plans.create("gold", PlanChanges(terms=TERMS))
    made = await TenantService(database, redis_client).create_tenant("acme")
    await plans.set_tenant_plan(made.id, "gold")
    await rewrite(owner_database, made.id, {BEGINNING: "gold"})
    return made.id


async def rewrite(database: Database, tenant: str, plans: dict[datetime, str]) -> None:
    """Have history say that the tenant was on these plans since then."""
    async with database.write(EVERY_TENANT) as session:
        await session.execute(text("DELETE FROM tenant_plans WHERE tenant_id = :tenant"), {"tenant": tenant})
        for since, name in plans.items():
            await session.execute(
                text("INSERT INTO tenant_plans SELECT :tenant, :since, id FROM plans WHERE name = :name"),
                {"tenant": tenant, "since": since, "name": name},
            )


def counts(requests: int, failed: int, seconds: float = 0.1, rate: float = 80.0) -> Counts:
    made = Counts(requests, failed)
    for _ in range(requests - failed):
        made.first_token(seconds, 0.2)
        made.output_rate(rate, 50)
    return made


async def keep(
    database: Database, tenant: str, minutes: dict[datetime, Counts], tier: str = "priority"
) -> None:
    async with database.write(EVERY_TENANT) as session:
        await SlaWriter(session).add({(tenant, "priority", minute): made for minute, made in minutes.items()})


def of(report: dict[str, Any], tier: str) -> dict[str, Any]:
    [found] = [part for part in report["data"] if part["service_tier"] == tier]
    return found


async def test_a_month_by_class(database: Database, tenant: str) -> None:
    day = datetime(2026, 4, 30, 23, 59, tzinfo=UTC)
    await keep(
        database,
        tenant,
        {
            day - timedelta(days=30): counts(1000, 1000),  # March
            day - timedelta(days=9): counts(900, 2),
            day: counts(100, 1, seconds=0.3, rate=20.0),
            day + timedelta(minutes=1): counts(1000, 1000),  # May
        },
    )
    await keep(database, "ten_other", {day: counts(50, 50)})
    report = await SlaReports(database).report(tenant, "2026-04", now=NOW)
    assert (report["month"], report["final"], report["plan"]) == ("2026-04", True, "gold")
    found = of(report, "priority")
    assert (found["requests"], found["failed"]) == (1000, 3)
    assert found["availability"] == {"promised": 0.999, "delivered": 0.997}
    assert found["error_budget"] == {"allowed": 1, "spent": 3, "remaining": 0}
    assert (found["credit_percent"], found["kept"]) == (10, False)
    first = found["time_to_first_token"]
    assert first["in_time"] == 898 * 1_000_000 // 997 / 1_000_000
    assert 84 <= first["p50_ms"] <= 119
    assert 252 <= first["p95_ms"] <= 357
    rate = found["output_rate"]
    assert rate["delivered"] == 898 * 1_000_000 // 997 / 1_000_000
    assert 67 <= rate["p50_tokens_per_second"] <= 96
    assert 16 <= rate["p95_tokens_per_second"] <= 24, "of the slowest twentieth"
    assert found["burn_rates"] is None, "the month is over"
    assert of(report, "default")["requests"] == 0
    assert of(report, "default")["credit_percent"] == 0


async def test_the_month_that_runs_has_burn_rates(database: Database, tenant: str) -> None:
    minute = NOW.replace(second=0)
    await keep(
        database,
        tenant,
        {
            minute - timedelta(minutes=3): counts(100, 5),
            minute - timedelta(minutes=50): counts(100, 0),
            minute - timedelta(hours=5): counts(800, 0),
        },
    )
    report = await SlaReports(database).report(tenant, now=NOW)
    assert (report["month"], report["final"]) == ("2026-05", False)
    burn = of(report, "priority")["burn_rates"]
    rates = {window["minutes"]: window["rate"] for window in burn["windows"]}
    assert rates == {5: 50.0, 30: 50.0, 60: 25.0, 360: 5.0, 4320: 5.0}
    assert burn["alert"] == "page"


async def test_a_budget_burnt_slowly_asks_for_a_ticket(database: Database, tenant: str) -> None:
    minute = NOW.replace(second=0)
    hours = {minute - timedelta(hours=hour, minutes=1): counts(1000, 2) for hour in range(72)}
    await keep(database, tenant, hours)
    burn = of(await SlaReports(database).report(tenant, now=NOW), "priority")["burn_rates"]
    assert burn["alert"] == "ticket"


async def test_another_tenants_minutes_are_not_seen(database: Database, tenant: str) -> None:
    await keep(database, "ten_other", {NOW.replace(second=0): counts(10, 10)})
    assert of(await SlaReports(database).report(tenant, now=NOW), "priority")["requests"] == 0


async def test_a_class_that_the_plan_no_longer_offers_is_still_reported(
    database: Database, tenant: str, redis_client: redis.asyncio.Redis
) -> None:
    await keep(database, tenant, {NOW.replace(second=0): counts(10, 0)})
    await PlanService(database, redis_client).set(
        "gold", PlanChanges(terms={PriorityClass.PRIORITY.value: {"allowed": False}})
    )
    assert of(await SlaReports(database).report(tenant, now=NOW), "priority")["requests"] == 10


@pytest.mark.parametrize("month", ["2026", "2026-13", "2026-5", "26-05", "0000-01", "2026-06", "x" * 300])
async def test_no_such_month(database: Database, tenant: str, month: str) -> None:
    with pytest.raises(InvalidMonth, match=r"^month: "):
        await SlaReports(database).report(tenant, month, now=NOW)


async def test_no_such_tenant(database: Database) -> None:
    with pytest.raises(TenantNotFound):
        await SlaReports(database).report("ten_nobody", now=NOW)


async def test_lately_is_the_last_minutes_that_had_requests(database: Database, tenant: str) -> None:
    """However far apart: an hour of them, of the last day."""
    minutes = {
        NOW - timedelta(minutes=10 * number): counts(2, 0, seconds=0.2) for number in range(LATEST_MINUTES)
    }
    minutes[NOW - timedelta(minutes=10 * LATEST_MINUTES)] = counts(50, 3, seconds=9.0, rate=1.0)
    minutes[NOW - timedelta(days=1, minutes=1)] = counts(1000, 1000)
    await keep(database, tenant, minutes)
    [recent] = await SlaReports(database).recent(tenant, now=NOW + timedelta(seconds=1))
    assert (recent.tier, recent.requests, recent.failed) == (PriorityClass.PRIORITY, 170, 3)
    assert recent.first_token[0] is not None
    assert recent.first_token[1] is not None
    assert 0.15 < recent.first_token[0] <= recent.first_token[1] < 0.25
    assert recent.output_rate is not None
    assert 60 < recent.output_rate < 100
    assert await SlaReports(database).recent("tnt_other", now=NOW) == []


async def test_each_part_of_a_month_is_judged_by_the_terms_of_then(
    database: Database, redis_client: redis.asyncio.Redis, owner_database: Database, tenant: str
) -> None:
    plans = PlanService(database, redis_client)
    lesser = {"priority": {"allowed": True, "availability_ppm": 900_000, "output_rate_ppm": 0, "credits": []}}
    await plans.create("tin", PlanChanges(terms=lesser))
    middle = datetime(2026, 4, 15, tzinfo=UTC)
    await keep(
        database,
        tenant,
        {
            middle - timedelta(days=3): counts(1000, 20),  # 98 %: gold gives 10 % of the bill for it
            middle + timedelta(days=3): counts(3000, 60),
        },
    )
    await rewrite(owner_database, tenant, {BEGINNING: "gold", middle: "tin"})
    report = await SlaReports(database).report(tenant, "2026-04", now=NOW)
    found = of(report, "priority")
    assert report["plan"] == "tin"
    assert (found["requests"], found["failed"], found["kept"]) == (4000, 80, False)
    assert found["availability"] == {"promised": 0.9, "delivered": 0.98}
    assert found["credit_percent"] == 3, "a quarter of ten, rounded up"
    assert found["error_budget"] == {"allowed": 1 + 300, "spent": 80, "remaining": 221}
    await rewrite(owner_database, tenant, {BEGINNING: "tin", datetime(2026, 5, 1, tzinfo=UTC): "gold"})
    report = await SlaReports(database).report(tenant, "2026-04", now=NOW)
    assert (report["plan"], of(report, "priority")["credit_percent"]) == ("tin", 0), "gold came later"


async def test_history_is_written_with_the_change(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    plans, tenants = PlanService(database, redis_client), TenantService(database, redis_client)
    made = await tenants.create_tenant("acme")
    await plans.create("gold", PlanChanges(terms=TERMS))
    await plans.set_tenant_plan(made.id, "gold")
    await plans.set("gold", PlanChanges(terms={"priority": {"availability_ppm": 500_000}}))
    now = datetime.now(UTC)
    async with database.read(made.id) as session:
        seen = await SlaRepository(session, made.id).terms_between(
            now - timedelta(hours=1), now + timedelta(hours=1)
        )
    promised = [read(one.terms)[PriorityClass.PRIORITY].availability_ppm for one in seen]
    assert [one.plan for one in seen] == ["standard", "gold", "gold"]
    assert promised[1:] == [999_000, 500_000]
    assert seen[0].start == now - timedelta(hours=1)
    assert [one.end for one in seen[:-1]] == [one.start for one in seen[1:]]
    async with database.read("ten_other") as session:
        assert await SlaRepository(session, "ten_other").terms_between(now - timedelta(hours=1), now) == []
