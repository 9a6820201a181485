"""The prepaid balance and the hard monthly limit, with all that costs something: tokens at any price,
storage, calibration, and what is taken back. The ledger, Redis and the caches are real.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import redis.asyncio
from sqlalchemy import text

from billing.charges import ChargeBook, DueCharge
from billing.folding import fold, measure
from billing.invoices.accounts import BillingAccounts
from billing.invoices.credits import record_credit
from billing.pricing import PriceService
from billing.rates import RATE_LABEL, Rate
from billing.repository import LedgerWriter
from billing.reversals import ReversalService
from billing.spend.adjusting import SpendAdjusting
from billing.window_usage import WindowUsage
from db.session import EVERY_TENANT, Database
from engine.protocol import UsageEvent
from tenants.actors import OPERATOR
from tenants.errors import BalanceExhausted, QuotaExhausted, RateLimited
from tenants.limits.kinds import Amounts, Limit, Metric
from tenants.models import Tenant
from tenants.quotas import Quotas
from tenants.quotas.balance import balance_limit
from tenants.quotas.unreserved_spend import UnreservedSpend
from tenants.resolver import KeyResolver
from tenants.service import AccountServices, account_services
from tests.support.journal import usage_event
from tests.support.killed_telling import TELLING
from tests.support.programs import end_killed
from tests.support.waiting import eventually
from tests.tenants.conftest import SECRET
from tests.tenants.quotas.conftest import caller, opened

NOW = datetime.now(UTC)


@pytest.fixture
def adjusting(database: Database, redis_client: redis.asyncio.Redis) -> SpendAdjusting:
    return SpendAdjusting(database, UnreservedSpend(redis_client, WindowUsage(database)))


async def pay(
    database: Database, client: redis.asyncio.Redis, tenant: Tenant, amount: int, name: str
) -> None:
    async with database.write(tenant.id) as session:
        await record_credit(session, client, tenant.id, "top_up", amount, name, OPERATOR, at=NOW)


def used(name: str, tenant_id: str, rate: Rate, output: int, at: datetime = NOW) -> UsageEvent:
    labels = {"key_id": "k", "model": "sapling", "service_tier": "default", RATE_LABEL: rate.label}
    return usage_event(
        name,
        0,
        output,
        tenant=tenant_id,
        labels=labels,
        submitted_at=at.timestamp(),
        recorded_at=at.timestamp(),
        finish_reason="stop",
    )


async def write(database: Database, *events: UsageEvent) -> None:
    async with database.write(EVERY_TENANT) as session:
        await LedgerWriter(session).upsert(fold(map(measure, events)))


async def charge(database: Database, tenant: Tenant, name: str, cost: int, at: datetime = NOW) -> None:
    due = DueCharge(name, tenant.id, "calibration", at, 1, "prc_1", cost, cost, name)
    async with database.write(EVERY_TENANT) as session:
        assert await ChargeBook(session).add([due])


async def state(quotas: Quotas, limit: Limit) -> tuple[int | None, int]:
    (found,) = await quotas.state(limit.scope_id, [limit])
    return found.used, found.held


async def test_what_is_paid_in_can_be_used_and_no_more(
    database: Database,
    redis_client: redis.asyncio.Redis,
    redis_url: str,
    accounts: AccountServices,
    tenant: Tenant,
) -> None:
    """From the key's cache to the refusal: who prepays is served while something is left, and is served again
    within a second of paying.
    """
    key = await accounts.keys.create(tenant.id, "mine", OPERATOR)
    billing = BillingAccounts(database, redis_client)
    resolver = KeyResolver(database, redis_client, SECRET)
    await resolver.start()
    try:
        await eventually(lambda: resolver.listening)
        assert (await resolver.resolve(key.plaintext)).limits == ()
        await pay(database, redis_client, tenant, 700, "before")
        await billing.set_mode(tenant.id, "prepaid", OPERATOR, now=NOW)

        async def hears(amount: int) -> None:
            async def heard() -> bool:
                known = (await resolver.resolve(key.plaintext)).limits
                return known == (balance_limit(tenant.id, amount),)

            assert await eventually(heard) < 1.0

        await hears(700)
        async with opened(redis_url, read_usage=WindowUsage(database)) as quotas:
            held = await quotas.reserve(
                "a", await resolver.resolve(key.plaintext), "sapling", Amounts(1, 0, 1, 700)
            )
            with pytest.raises(RateLimited):  # others hold it, and may not use it
                await quotas.reserve(
                    "b", await resolver.resolve(key.plaintext), "sapling", Amounts(1, 0, 1, 1)
                )
            quotas.settle(held, Amounts(1, 0, 1, 700))
            await eventually(lambda: quotas.num_open == 0)
            with pytest.raises(BalanceExhausted, match="Top it up") as refused:
                await quotas.reserve(
                    "c", await resolver.resolve(key.plaintext), "sapling", Amounts(1, 0, 1, 1)
                )
            assert refused.value.resets_at is None
            await pay(database, redis_client, tenant, 50, "more")
            await hears(750)
            who = await resolver.resolve(key.plaintext)
            await quotas.reserve("d", who, "sapling", Amounts(1, 0, 1, 50))
            assert await state(quotas, who.limits[0]) == (700, 50)
        await billing.set_mode(tenant.id, "postpaid", OPERATOR, now=NOW)

        async def unlimited() -> bool:
            return (await resolver.resolve(key.plaintext)).limits == ()

        assert await eventually(unlimited) < 1.0
    finally:
        await resolver.close()


async def test_a_balance_begins_with_what_the_ledger_has_of_prepaid_times(
    database: Database, redis_client: redis.asyncio.Redis, tenant: Tenant
) -> None:
    """Nothing of what was used before, between and after; each request at the price it carries."""
    billing, usage = BillingAccounts(database, redis_client), WindowUsage(database)
    minute = NOW.replace(second=0, microsecond=0)
    begin = [minute - timedelta(days=one) for one in (60, 50, 40)]
    for mode, moment in zip(("prepaid", "postpaid", "prepaid"), begin, strict=True):
        await billing.set_mode(tenant.id, mode, OPERATOR, now=moment)  # type: ignore[arg-type]
    cheap, dear = Rate("prc_1", 0, 0, 1_000_000, 100), Rate("prc_2", 0, 0, 3_000_000, 150)
    second = timedelta(seconds=1)
    await write(
        database,
        used("too early", tenant.id, dear, 10_000, begin[0] - second),
        used("first", tenant.id, cheap, 100, begin[0]),
        used("dearer", tenant.id, dear, 100, begin[1] - second),
        used("between", tenant.id, dear, 10_000, begin[1] + timedelta(minutes=1)),
        used("second", tenant.id, cheap, 7, begin[2]),
        used("now", tenant.id, dear, 1, NOW),
    )
    epoch = datetime.fromtimestamp(0, UTC)
    assert await usage(tenant.id, balance_limit(tenant.id, 0), epoch) == 100 + 450 + 7 + 5


async def test_costs_that_are_no_requests_count_once(
    database: Database,
    redis_client: redis.asyncio.Redis,
    redis_url: str,
    tenant: Tenant,
    adjusting: SpendAdjusting,
) -> None:
    """Whether the count is there when budgets are told, or begins later; beside requests that are open."""
    await BillingAccounts(database, redis_client).set_mode(tenant.id, "prepaid", OPERATOR, now=NOW)
    await pay(database, redis_client, tenant, 1000, "first")
    limits = [
        balance_limit(tenant.id, 1000),
        Limit("tenant", tenant.id, "", Metric.SPEND_PER_MONTH, 5000),
    ]
    accounts = account_services(database, redis_client, SECRET)
    await accounts.limits.set(tenant.id, OPERATOR, limits[1])
    await write(database, used("earlier", tenant.id, Rate("p", 0, 0, 1_000_000), 100))
    await charge(database, tenant, "calibration:one", 40)
    async with opened(redis_url, read_usage=WindowUsage(database)) as quotas:
        who = caller(*limits, tenant=tenant.id)
        held = await quotas.reserve("a", who, "sapling", Amounts(1, 0, 1, 500))
        assert [await state(quotas, limit) for limit in limits] == [(100, 500)] * 2, "not told of it yet"
        assert await adjusting.report(NOW) == 1
        assert await adjusting.report(NOW) == 0
        assert [await state(quotas, limit) for limit in limits] == [(140, 500)] * 2
        # A cost counts though nothing is left.
        await charge(database, tenant, "calibration:two", 900)
        last_month = NOW.replace(day=1) - timedelta(days=1)
        await charge(database, tenant, "calibration:long ago", 3, last_month)
        assert await adjusting.report(NOW) == 2
        assert [await state(quotas, limit) for limit in limits] == [(1040, 500)] * 2
        with pytest.raises(BalanceExhausted):
            await quotas.reserve("b", who, "sapling", Amounts(1, 0, 1, 1))
        quotas.settle(held, Amounts(1, 0, 1, 500))
        await eventually(lambda: quotas.num_open == 0)
        reversals = ReversalService(database)
        await reversals.reverse_charge(tenant.id, "calibration:two", reason="a mistake", by=OPERATOR)
        assert await adjusting.report(NOW) == 1
        assert [await state(quotas, limit) for limit in limits] == [(640, 0)] * 2, "given back"
    # Redis comes back empty: what it was told of is in the ledger, but for the open request of this test.
    await redis_client.flushall()
    async with opened(redis_url, read_usage=WindowUsage(database)) as quotas:
        assert [await state(quotas, limit) for limit in limits] == [(140, 0)] * 2


@pytest.mark.parametrize("taken_back", [False, True])
@pytest.mark.parametrize("instant", TELLING)
async def test_a_cost_counts_once_though_who_tells_it_is_killed(
    database: Database,
    database_url: str,
    redis_client: redis.asyncio.Redis,
    redis_url: str,
    tenant: Tenant,
    adjusting: SpendAdjusting,
    instant: str,
    taken_back: bool,
) -> None:
    """With SIGKILL; of a charge, and of the reversal of one."""
    await BillingAccounts(database, redis_client).set_mode(tenant.id, "prepaid", OPERATOR, now=NOW)
    balance = balance_limit(tenant.id, 0)
    await charge(database, tenant, "calibration:one", 40)
    before = 0
    async with opened(redis_url, read_usage=WindowUsage(database)) as quotas:
        assert await state(quotas, balance) == (0, 0)
        if taken_back:
            await adjusting.report(NOW)
            reversals = ReversalService(database)
            await reversals.reverse_charge(tenant.id, "calibration:one", reason="a mistake", by=OPERATOR)
            before = 40
        await end_killed("tests.support.killed_telling", database_url, redis_url, instant)
        if instant != "settled":
            assert (await state(quotas, balance))[0] == before
        for _ in range(2):
            await adjusting.report(NOW)
            assert await state(quotas, balance) == (40 - before, 0)


async def test_a_short_look_leaves_what_was_made_long_ago_to_the_long_one(
    database: Database, owner_database: Database, tenant: Tenant, adjusting: SpendAdjusting
) -> None:
    for name in ("calibration:old", "calibration:new"):
        await charge(database, tenant, name, 40)
    async with owner_database.write(EVERY_TENANT) as session:
        await session.execute(text("SET LOCAL session_replication_role = replica"))
        aged = "UPDATE charges SET created_at = now() - interval '2 hours' WHERE id = 'calibration:old'"
        await session.execute(text(aged))
    assert await adjusting.report(NOW, lately=timedelta(hours=1)) == 1
    assert await adjusting.report(NOW, lately=timedelta(hours=1)) == 0
    assert await adjusting.report(NOW) == 1


async def test_the_monthly_limit_is_exact_over_a_change_of_prices(
    database: Database, redis_client: redis.asyncio.Redis, redis_url: str, tenant: Tenant
) -> None:
    """Reserved and charged at the price each request carries; a count that begins anew is the same."""
    limit = Limit("tenant", tenant.id, "", Metric.SPEND_PER_MONTH, 1000)
    await PriceService(database, redis_client).add(input=1, cached_input=1, output=1)
    rates = [Rate("p1", 0, 0, 1_000_000), Rate("p2", 0, 0, 7_000_000), Rate("p3", 0, 0, 2_500_000, 130)]
    spent = 0
    async with opened(redis_url, read_usage=WindowUsage(database)) as quotas:
        who = caller(limit, tenant=tenant.id)
        for number in range(200):
            rate, output = rates[number % 3], number % 11
            try:
                held = await quotas.reserve(
                    f"r{number}", who, "sapling", Amounts(1, 0, 10, rate.worst(0, 10))
                )
            except QuotaExhausted:
                continue
            event = used(f"r{number}", tenant.id, rate, output)
            cost = rate.cost(event.usage)
            spent += cost
            quotas.settle(held, Amounts(1, 0, output, cost))
            await write(database, event)
        await eventually(lambda: quotas.num_open == 0)
        assert await state(quotas, limit) == (spent, 0)
    assert 1000 - rates[0].worst(0, 10) < spent <= 1000
    month = NOW.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    assert await WindowUsage(database)(tenant.id, limit, month) == spent
