from __future__ import annotations

import pytest
import redis.asyncio

from db.session import Database
from tenants.actors import OPERATOR
from tenants.errors import NameTaken, PlanChanged, PlanNotFound, TenantNotFound
from tenants.key_service import KeyService
from tenants.plans import STANDARD, PlanChanges, PlanService, revision
from tenants.resolver import KeyResolver
from tenants.service import TenantService
from tests.support.statements import Statements
from tests.support.waiting import eventually

SECRET = "a server's secret of enough length"


@pytest.fixture
def plans(database: Database, redis_client: redis.asyncio.Redis) -> PlanService:
    return PlanService(database, redis_client)


@pytest.fixture
async def tenant(database: Database, redis_client: redis.asyncio.Redis) -> str:
    return (await TenantService(database, redis_client).create_tenant("acme")).id


async def test_the_schema_makes_the_standard_plan(plans: PlanService, tenant: str) -> None:
    assert await plans.list() == [STANDARD]
    assert await plans.of_tenant(tenant) == STANDARD
    with pytest.raises(TenantNotFound):
        await plans.of_tenant("tnt_nobody")


async def test_a_plan_is_made_changed_and_given(plans: PlanService, tenant: str) -> None:
    made = await plans.create("large", PlanChanges(max_adapters=500, gate={"max_nll_gap": 0.5}))
    assert (made.max_adapters, made.max_file_bytes, dict(made.gate)) == (500, 2 << 30, {"max_nll_gap": 0.5})
    changed = await plans.set("large", PlanChanges(pinned_adapters=2, gate={"min_agreement": 0.9}))
    assert (changed.max_adapters, changed.pinned_adapters) == (500, 2)
    assert changed.gate == {"max_nll_gap": 0.5, "min_agreement": 0.9}
    await plans.set_tenant_plan(tenant, "large")
    assert await plans.of_tenant(tenant) == changed
    assert [plan.name for plan in await plans.list()] == ["standard", "large"]


async def test_a_plan_is_changed_as_it_was_seen_or_not_at_all(plans: PlanService, tenant: str) -> None:
    seen = revision(await plans.create("large"))
    assert revision(await plans.find("large")) == seen
    changed = await plans.set("large", PlanChanges(terms={"flex": {"allowed": False}}), seen=seen)
    assert revision(changed) != seen
    for changes in (PlanChanges(monthly_fee=5), PlanChanges(limits={"requests_per_day": 1})):
        with pytest.raises(PlanChanged, match="changed meanwhile"):
            await plans.set("large", changes, seen=seen)
    assert await plans.find_by_id(changed.id) == changed
    await plans.set_tenant_plan(tenant, "large")
    assert await plans.num_tenants() == {changed.id: 1}
    for nobody in ("plan_none", "\x00", "standard"):
        with pytest.raises(PlanNotFound):
            await plans.find_by_id(nobody)


async def test_what_is_wrong_with_a_plan_is_named(plans: PlanService, tenant: str) -> None:
    with pytest.raises(NameTaken, match="standard"):
        await plans.create("standard")
    with pytest.raises(ValueError, match="name must be"):
        await plans.create("Large plan")
    with pytest.raises(ValueError, match="max_adapters must be from 0"):
        await plans.set("standard", PlanChanges(max_adapters=-1))
    with pytest.raises(ValueError, match="gate: min_agreement must be a number"):
        await plans.set("standard", PlanChanges(gate={"min_agreement": "high"}))  # type: ignore[dict-item]
    for action in (plans.set("absent", PlanChanges()), plans.set_tenant_plan(tenant, "absent")):
        with pytest.raises(PlanNotFound):
            await action
    with pytest.raises(TenantNotFound):
        await plans.set_tenant_plan("tnt_nobody", "standard")


async def test_a_caller_carries_its_plan_and_hears_of_changes(
    plans: PlanService, tenant: str, database: Database, redis_client: redis.asyncio.Redis
) -> None:
    key = await KeyService(database, redis_client, SECRET).create(tenant, "main", OPERATOR)
    keys = KeyResolver(database, redis_client, SECRET)
    await keys.start()
    try:
        await eventually(lambda: keys.listening)
        assert (await keys.resolve(key.plaintext)).plan == STANDARD
        await plans.create("large", PlanChanges(max_adapters=500))

        async def sees(max_adapters: int) -> bool:
            return (await keys.resolve(key.plaintext)).plan.max_adapters == max_adapters

        await plans.set_tenant_plan(tenant, "large")
        assert await eventually(lambda: sees(500)) < 1
        await plans.set("large", PlanChanges(max_adapters=7))
        assert await eventually(lambda: sees(7)) < 1
        with Statements(database) as statements:
            await keys.resolve(key.plaintext)
        assert statements.seen == [], "the plan costs no query of its own"
    finally:
        await keys.close()
