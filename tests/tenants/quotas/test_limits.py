from __future__ import annotations

import pytest
import redis.asyncio

from db.session import Database
from tenants.actors import OPERATOR, Actor
from tenants.audit.service import AuditLog
from tenants.errors import KeyNotFound, LimitNotFound, ProjectNotFound, TenantNotFound
from tenants.limits.kinds import Limit, Metric
from tenants.limits.repository import compiled
from tenants.models import Tenant
from tenants.plans import PlanChanges, PlanService
from tenants.quotas.balance import set_balance
from tenants.quotas.plan import bucket_key
from tenants.quotas.service import LimitService
from tenants.resolver import KeyResolver
from tenants.service import AccountServices
from tests.support.waiting import eventually

ADMIN = Actor("api_key", "key_admin", "192.0.2.1", "req-1")


@pytest.fixture
def limits(database: Database, redis_client: redis.asyncio.Redis) -> LimitService:
    return LimitService(database, redis_client)


@pytest.fixture
def plans(database: Database, redis_client: redis.asyncio.Redis) -> PlanService:
    return PlanService(database, redis_client)


def per_minute(tenant: Tenant, amount: int, model: str = "") -> Limit:
    return Limit("tenant", tenant.id, model, Metric.REQUESTS_PER_MINUTE, amount)


async def test_limits_are_set_changed_listed_and_deleted(limits: LimitService, tenant: Tenant) -> None:
    await limits.set(tenant.id, ADMIN, per_minute(tenant, 10))
    await limits.set(tenant.id, ADMIN, per_minute(tenant, 20))
    await limits.set(tenant.id, ADMIN, per_minute(tenant, 5, "sapling:*"))
    assert await limits.list(tenant.id) == [per_minute(tenant, 20), per_minute(tenant, 5, "sapling:*")]
    await limits.delete(tenant.id, ADMIN, "tenant", tenant.id, "", Metric.REQUESTS_PER_MINUTE)
    assert await limits.list(tenant.id) == [per_minute(tenant, 5, "sapling:*")]
    for model in ("", "\x00"):
        with pytest.raises(LimitNotFound):
            await limits.delete(tenant.id, ADMIN, "tenant", tenant.id, model, Metric.REQUESTS_PER_MINUTE)


async def test_every_change_is_in_the_audit_log(
    limits: LimitService, database: Database, accounts: AccountServices, tenant: Tenant
) -> None:
    project = await accounts.projects.default(tenant.id)
    spend = Limit("project", project.id, "", Metric.SPEND_PER_MONTH, 5_000_000)
    await limits.set(tenant.id, ADMIN, spend)
    await limits.set(tenant.id, ADMIN, Limit("project", project.id, "", Metric.SPEND_PER_MONTH, 7))
    await limits.delete(tenant.id, ADMIN, "project", project.id, "", Metric.SPEND_PER_MONTH)
    log = AuditLog(database)
    deleted, changed, made = (await log.list(tenant.id))[:3]
    assert [entry.type for entry in (made, changed, deleted)] == ["limit.set", "limit.set", "limit.deleted"]
    assert made.details == {"model": "", "metric": "spend_per_month", "amount": 5_000_000}
    assert changed.details["amount_before"] == 5_000_000
    assert deleted.details["amount_before"] == 7
    for entry in (made, changed, deleted):
        assert (entry.target_kind, entry.target_id, entry.project_id) == ("project", project.id, project.id)
        assert entry.actor["id"] == "key_admin"
    assert await log.verify(tenant.id) is None


async def test_only_ones_own_are_limited(
    limits: LimitService, accounts: AccountServices, tenant: Tenant, other: Tenant
) -> None:
    theirs = await accounts.projects.default(other.id)
    key = await accounts.keys.create(other.id, "k", OPERATOR)
    metric = Metric.REQUESTS_PER_DAY
    with pytest.raises(ProjectNotFound):
        await limits.set(tenant.id, ADMIN, Limit("project", theirs.id, "", metric, 1))
    with pytest.raises(KeyNotFound):
        await limits.set(tenant.id, ADMIN, Limit("key", key.id, "", metric, 1))
    with pytest.raises(TenantNotFound):
        await limits.set(tenant.id, ADMIN, Limit("tenant", other.id, "", metric, 1))
    await limits.set(other.id, ADMIN, Limit("key", key.id, "", metric, 1))
    assert await limits.list(tenant.id) == []
    with pytest.raises(LimitNotFound):
        await limits.delete(tenant.id, ADMIN, "key", key.id, "", metric)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"scope": "user"}, "scope"),
        ({"model": "../x"}, "model"),
        ({"amount": -1}, "amount"),
        ({"amount": 10**11 + 1}, "amount"),
        ({"amount": True}, "amount"),
        ({"metric": Metric.STORAGE_BYTES, "model": "sapling"}, "metric"),
        ({"metric": Metric.PREPAID_BALANCE}, "metric"),
    ],
)
async def test_what_is_wrong_is_named(
    limits: LimitService, tenant: Tenant, changes: dict[str, object], named: str
) -> None:
    fields = {"scope": "tenant", "scope_id": tenant.id, "model": "", "metric": Metric.TOKENS_PER_MINUTE}
    with pytest.raises(ValueError, match=f"^{named}"):
        await limits.set(tenant.id, ADMIN, Limit(**(fields | {"amount": 1} | changes)))  # type: ignore[arg-type]


async def test_a_key_carries_the_limits_that_are_on_it(
    limits: LimitService,
    plans: PlanService,
    accounts: AccountServices,
    resolver: KeyResolver,
    tenant: Tenant,
) -> None:
    project = await accounts.projects.default(tenant.id)
    key = await accounts.keys.create(tenant.id, "mine", OPERATOR)
    neighbour = await accounts.keys.create(tenant.id, "a neighbour's", OPERATOR)
    assert (await resolver.resolve(key.plaintext)).limits == ()
    rate, daily = Metric.REQUESTS_PER_MINUTE, Metric.TOKENS_PER_DAY

    async def hears(expected: set[Limit]) -> None:
        async def heard() -> bool:
            return set((await resolver.resolve(key.plaintext)).limits) == expected

        assert await eventually(heard) < 1.0

    plan_rate = Limit("tenant", tenant.id, "", rate, 100)
    plan_daily = Limit("tenant", tenant.id, "", daily, 1000)
    await plans.set("standard", PlanChanges(limits={rate: 100, daily: 1000}))
    await hears({plan_rate, plan_daily})
    ours = [
        Limit("tenant", tenant.id, "", rate, 50),
        Limit("project", project.id, "sapling:pirate", rate, 20),
        Limit("key", key.id, "", rate, 10),
    ]
    for limit in ours:
        await limits.set(tenant.id, ADMIN, limit)
    await limits.set(tenant.id, ADMIN, Limit("key", neighbour.id, "", rate, 1))
    await hears({plan_daily, *ours})
    assert len(await limits.effective(tenant.id)) == 5
    await limits.delete(tenant.id, ADMIN, "tenant", tenant.id, "", rate)
    await plans.set("standard", PlanChanges(limits={daily: None}))
    await hears({plan_rate, *ours[1:]})


async def test_plans_limit_only_what_they_may(plans: PlanService) -> None:
    for wrong in ({"adapters": 5}, {"prepaid_balance": 5}, {"requests": 1}, {"tokens_per_day": -1}):
        with pytest.raises(ValueError, match=r"limits|amount"):
            await plans.set("standard", PlanChanges(limits=wrong))


async def test_a_new_budget_begins_with_what_the_ledger_has(
    limits: LimitService, redis_client: redis.asyncio.Redis, tenant: Tenant
) -> None:
    """What was counted under a limit of the same name long ago says nothing of what is used now."""
    budget = Limit("tenant", tenant.id, "", Metric.TOKENS_PER_DAY, 10)
    key = bucket_key(tenant.id, budget)
    await redis_client.set(key, b"counted in former times")
    await limits.set(tenant.id, ADMIN, budget)
    assert await redis_client.get(key) is None
    await redis_client.set(key, b"counted since")
    await limits.set(tenant.id, ADMIN, Limit("tenant", tenant.id, "", Metric.TOKENS_PER_DAY, 20))
    assert await redis_client.get(key) == b"counted since"


async def test_a_prepaid_balance_is_heard_and_no_ones_to_change(
    limits: LimitService,
    database: Database,
    redis_client: redis.asyncio.Redis,
    accounts: AccountServices,
    resolver: KeyResolver,
    tenant: Tenant,
) -> None:
    key = await accounts.keys.create(tenant.id, "mine", OPERATOR)
    assert (await resolver.resolve(key.plaintext)).limits == ()

    async def becomes(amount: int | None) -> None:
        async with database.write(tenant.id) as session:
            await set_balance(session, redis_client, tenant.id, amount)

        async def heard() -> bool:
            known = (await resolver.resolve(key.plaintext)).limits
            return [limit.amount for limit in known] == ([] if amount is None else [max(0, amount)])

        assert await eventually(heard) < 1.0

    await redis_client.set(b"rootstock:quota:{%b}:prepaid_balance::" % tenant.id.encode(), b"of former times")
    await becomes(500)
    assert await redis_client.exists(f"rootstock:quota:{{{tenant.id}}}:prepaid_balance::") == 0
    await becomes(0)
    await becomes(-7)
    with pytest.raises(LimitNotFound):
        await limits.delete(tenant.id, ADMIN, "tenant", tenant.id, "", Metric.PREPAID_BALANCE)
    await becomes(None)


def test_models_are_named_as_on_a_keys_list() -> None:
    names = ["sapling", "sapling:pirate@1", "sapling:pirate@2", "sapling:poet@1"]
    covered = {
        model: [name for name in names if Limit("tenant", "t", model, Metric.ADAPTERS, 1).covers(name)]
        for model in ("", "sapling", "sapling:*", "sapling:pirate", "sapling:pirate@2", "oak")
    }
    assert covered == {
        "": names,
        "sapling": ["sapling"],
        "sapling:*": names[1:],
        "sapling:pirate": ["sapling:pirate@1", "sapling:pirate@2"],
        "sapling:pirate@2": ["sapling:pirate@2"],
        "oak": [],
    }


def test_rows_replace_the_plans_and_come_in_one_order() -> None:
    rows = [
        ("key", "key_1", "", "tokens_per_day", 3, "key_0"),
        ("tenant", "tnt_1", "", "tokens_per_day", 2, None),
    ]
    plan = {"tokens_per_day": 1, "requests_per_minute": 9}
    expected = (
        Limit("tenant", "tnt_1", "", Metric.REQUESTS_PER_MINUTE, 9),
        Limit("tenant", "tnt_1", "", Metric.TOKENS_PER_DAY, 2),
        Limit("key", "key_1", "", Metric.TOKENS_PER_DAY, 3, "key_0"),
    )
    assert compiled("tnt_1", plan, rows) == expected
    assert compiled("tnt_1", plan, reversed(rows)) == expected
    assert [one.counted_id for one in compiled("tnt_1", plan, rows)] == ["tnt_1", "tnt_1", "key_0"]
