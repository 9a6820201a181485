"""What other prices would have made of a month, against the ledger priced row by row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import redis.asyncio
from sqlalchemy import text

from billing.charges import CALIBRATION, STORAGE, ChargeBook, DueCharge
from billing.previews.service import PlanCosts, PricePreviews
from billing.pricing import PriceVersion
from billing.rates import Rate
from db.session import EVERY_TENANT, Database
from engine.protocol import Usage
from tenants.plans import PlanChanges, PlanService
from tenants.service import TenantService
from tests.support.booked import request, write

NOW = datetime(2026, 11, 17, tzinfo=UTC)
START = datetime(2026, 10, 1, tzinfo=UTC)
PERCENTS = {"priority": 175, "default": 100, "flex": 30}
DRAFT = PriceVersion("", NOW, 310_000, 70_000, 1_230_000, 45_000, 130_000, 2_000_000)


async def test_a_preview_is_the_ledger_priced_anew(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    plans = PlanService(database, redis_client)
    await plans.create("cheap", PlanChanges(terms={"flex": {"price_percent": PERCENTS["flex"]}}))
    tenants = [await TenantService(database, redis_client).create_tenant(name) for name in ("acme", "birch")]
    for tenant in tenants:
        await plans.set_tenant_plan(tenant.id, "cheap")
    random, old = Random(7), Rate("prc_old", 200_000, 100_000, 800_000)
    events, counts = [], dict.fromkeys((tenant.id for tenant in tenants), 0)
    before, after = dict(counts), dict(counts)
    for number in range(120):
        whose, tier = random.choice(tenants).id, random.choice([*PERCENTS])
        cached = random.randrange(500)
        usage = Usage(cached + random.randrange(1, 5000), cached, random.randrange(900))
        on_adapter = random.random() < 0.5
        inside = number % 10 != 0
        moment = START + timedelta(seconds=random.randrange(31 * 86_400))
        at = moment if inside else moment + timedelta(days=31)
        labels = {"adapter_id": "adp_1"} if on_adapter else {}
        events.append(request(whose, at.timestamp(), usage=usage, rate=old, tier=tier, **labels))  # type: ignore[arg-type]
        if inside:
            counts[whose] += 1
            before[whose] += old.cost(usage)
            after[whose] += DRAFT.rate(PERCENTS[tier], on_adapter).cost(usage)
    await write(database, events)
    found = await PricePreviews(database).preview(DRAFT, NOW)
    assert found.month == START.date()
    for line in found.lines:
        assert (line.requests, line.before) == (counts[line.tenant_id], before[line.tenant_id])
        # Rows are rounded up one by one, sums are not.
        assert 0 <= after[line.tenant_id] - line.after < line.requests
    assert found.after == sum(line.after for line in found.lines)
    differences = [abs(line.difference) for line in found.lines]
    assert differences == sorted(differences, reverse=True)


async def test_storage_is_what_was_stored_and_calibrations_what_was_charged(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    tenant = await TenantService(database, redis_client).create_tenant("acme")
    async with database.write(EVERY_TENANT) as session:
        # For ten days, two GB, and half a GB of which nothing was charged.
        row = "INSERT INTO adapter_storage (tenant_id, adapter_id, version, size, since, until) VALUES "
        values = "(:tenant, 'adp_1', :version, :size, :since, :until)"
        span = {"tenant": tenant.id, "since": START, "until": START + timedelta(days=10)}
        for version, size in ((1, 2 * 10**9), (2, 5 * 10**8)):
            await session.execute(text(row + values), {**span, "version": version, "size": size})
        at = START + timedelta(days=1)
        charges = [
            DueCharge("storage:x", tenant.id, STORAGE, at, 2 * 10**9, "prc_old", 100_000, 200_000, "adp_1@1"),
            DueCharge("calibration:x", tenant.id, CALIBRATION, at, 1, "prc_old", 500_000, 500_000, "job_1"),
        ]
        await ChargeBook(session).add(charges)
    (line,) = (await PricePreviews(database).preview(DRAFT, NOW)).lines
    assert line.before == 700_000
    assert line.after == 10 * (2 * 130_000 + 65_000) + 2_000_000
    free = PriceVersion("", NOW, 0, 0, 0)
    assert (await PricePreviews(database).preview(free, NOW)).after == 0
    january = await PricePreviews(database).preview(DRAFT, datetime(2027, 1, 3, tzinfo=UTC))
    assert (january.month.isoformat(), january.lines) == ("2026-12-01", [])


async def test_a_plan_is_tried_on_what_its_own_tenants_used(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    plans = PlanService(database, redis_client)
    plan = await plans.create("cheap")
    acme, idle, other = [
        await TenantService(database, redis_client).create_tenant(name) for name in ("acme", "idle", "other")
    ]
    for tenant in (acme, idle):
        await plans.set_tenant_plan(tenant.id, "cheap")
    used = {"default": Usage(1_000_000, 0, 1_000_000), "flex": Usage(2_000_000, 1_000_000, 0)}
    at, rate = (START + timedelta(days=3)).timestamp(), Rate("prc_old", 1, 1, 1)
    events = [
        request(tenant.id, at, usage=usage, rate=rate, tier=tier)
        for tenant in (acme, other)
        for tier, usage in used.items()
    ]
    late = request(acme.id, (START + timedelta(days=40)).timestamp(), usage=used["default"], rate=rate)
    await write(database, [*events, late])
    before = PlanCosts({"default": 100, "flex": 50}, 0, 0)
    after = PlanCosts({"default": 100, "flex": 25}, 5_000_000, 1_000_000)
    found = await PricePreviews(database).preview_plan(DRAFT, plan.id, before, after, NOW)
    # 1 M in, 1 M out; and of 1 M in and 1 M from the cache a half, or a quarter.
    default, flex = 310_000 + 1_230_000, 310_000 + 70_000
    bills = {
        acme.id: (2, default + flex // 2, 5_000_000 + default + flex // 4 - 1_000_000),
        idle.id: (0, 0, 5_000_000),
    }
    assert {line.tenant_id: (line.requests, line.before, line.after) for line in found.lines} == bills
    assert [line.tenant_name for line in found.lines] == ["idle", "acme"], "whom it changes most first"
    covering = PlanCosts({}, 0, 10**9)
    assert (await PricePreviews(database).preview_plan(DRAFT, plan.id, before, covering, NOW)).after == 0
