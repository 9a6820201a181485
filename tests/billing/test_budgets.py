"""What the ledger says of a budget, and what its last words settle."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import redis.asyncio

from billing.folding import fold, measure
from billing.metering import JournalMeter
from billing.rates import RATE_LABEL, Rate
from billing.repository import LedgerWriter
from billing.settling import ReservationSettlement, metered
from billing.window_usage import WindowUsage
from db.session import EVERY_TENANT, Database
from engine.protocol import JOURNAL_STREAM, Usage, UsageEvent
from tenants.actors import OPERATOR
from tenants.limits.kinds import Amounts, Limit, Metric
from tenants.models import Tenant
from tenants.quotas.journal import JournalSettling, MeteredRequest
from tenants.service import AccountServices
from tests.support.journal import usage_event, write_events
from tests.tenants.quotas.conftest import caller, opened

START = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=2)


def event(name: str, tenant_id: str, minute: int, labels: dict[str, str], **usage: int) -> UsageEvent:
    at = (START + timedelta(minutes=minute)).timestamp()
    return usage_event(name, tenant=tenant_id, submitted_at=at, labels=labels, **usage)


async def write(database: Database, *events: UsageEvent) -> None:
    async with database.write(EVERY_TENANT) as session:
        await LedgerWriter(session).upsert(fold(map(measure, events)))


async def test_usage_is_summed_by_what_a_limit_covers(
    database: Database, accounts: AccountServices, tenant: Tenant
) -> None:
    project = await accounts.projects.default(tenant.id)
    key = await accounts.keys.create(tenant.id, "k", OPERATOR)
    other = await accounts.projects.create(tenant.id, "other", OPERATOR)
    elsewhere = await accounts.keys.create(tenant.id, "e", OPERATOR, project_id=other.id)
    stranger = await accounts.tenants.create_tenant("birch")

    def labels(key_id: str, model: str) -> dict[str, str]:
        return {"key_id": key_id, "model": model, "service_tier": "default"}

    await write(
        database,
        event("early", tenant.id, -1, labels(key.id, "sapling"), prompt=10_000),
        event("a", tenant.id, 0, labels(key.id, "sapling"), prompt=1, completion=10),
        event("b", tenant.id, 5, labels(key.id, "sapling:pirate@1"), prompt=2, completion=20),
        event("c", tenant.id, 5, labels(key.id, "sapling:pirate@2"), prompt=3, completion=30),
        event("d", tenant.id, 9, labels(elsewhere.id, "sapling:pi@1"), prompt=4, completion=40),
        event("e", stranger.id, 9, labels(key.id, "sapling"), prompt=5, completion=50),
    )
    usage = WindowUsage(database)

    async def tokens(
        scope: str, scope_id: str, model: str = "", metric: Metric = Metric.TOKENS_PER_DAY
    ) -> int:
        return await usage(tenant.id, Limit(scope, scope_id, model, metric, 1), START)  # type: ignore[arg-type]

    assert await tokens("tenant", tenant.id) == 110
    assert await tokens("tenant", tenant.id, metric=Metric.REQUESTS_PER_DAY) == 4
    assert await tokens("tenant", tenant.id, "sapling") == 11
    assert await tokens("tenant", tenant.id, "sapling:*") == 99
    assert await tokens("tenant", tenant.id, "sapling:pirate") == 55
    assert await tokens("tenant", tenant.id, "sapling:pirate@2") == 33
    assert await tokens("tenant", tenant.id, "sapling:pi") == 44
    assert await tokens("project", project.id) == 66
    assert await tokens("project", other.id) == 44
    assert await tokens("key", key.id) == 66
    assert await tokens("key", "key_nobody") == 0


async def test_keys_that_replace_each_other_are_summed_together(
    database: Database, accounts: AccountServices, tenant: Tenant
) -> None:
    old = await accounts.keys.create(tenant.id, "k", OPERATOR)
    other = await accounts.keys.create(tenant.id, "o", OPERATOR)
    await accounts.limits.set(tenant.id, OPERATOR, Limit("key", old.id, "", Metric.TOKENS_PER_DAY, 1000))
    new = await accounts.keys.rotate(tenant.id, old.id, OPERATOR)
    newest = await accounts.keys.rotate(tenant.id, new.id, OPERATOR)
    used = {old.id: 1, new.id: 10, newest.id: 100, other.id: 1000}
    await write(
        database,
        *(
            event(
                f"r{number}",
                tenant.id,
                number,
                {"key_id": key_id, "model": "sapling"},
                prompt=tokens,
                completion=0,
            )
            for number, (key_id, tokens) in enumerate(used.items())
        ),
    )
    own = [limit for limit in await accounts.limits.list(tenant.id) if limit.scope == "key"]
    assert {limit.scope_id for limit in own} == {old.id, new.id, newest.id}
    assert [await WindowUsage(database)(tenant.id, limit, START) for limit in own] == [111] * 3


async def test_spend_is_what_the_rates_that_requests_carried_make_it(
    database: Database, tenant: Tenant
) -> None:
    """To the micro-USD, whatever the price list says by now."""
    spend = Limit("tenant", tenant.id, "", Metric.SPEND_PER_MONTH, 1)
    usage = WindowUsage(database)
    labels = {"key_id": "k", "model": "sapling"}
    default = Rate("prc_1", 2_000_001, 1_000_000, 10_000_000)
    flex = Rate("prc_2", 3, 3, 3, 50)
    await write(database, event("free", tenant.id, 0, labels, prompt=1000, completion=100))
    assert await usage(tenant.id, spend, START) == 0
    await write(
        database,
        event(
            "a", tenant.id, 0, labels | {RATE_LABEL: default.label}, prompt=1000, completion=100, cached=400
        ),
        event("b", tenant.id, 1, labels | {RATE_LABEL: flex.label}, prompt=1, completion=1),
    )
    exact = default.cost(Usage(1000, 400, 100)) + flex.cost(Usage(1, 0, 1))
    assert exact == 600 * 2 + 1 + 400 + 100 * 10 + 1
    assert await usage(tenant.id, spend, START) == exact


def test_an_event_is_settled_at_the_rate_it_carries() -> None:
    rate = Rate("prc_1", 2_000_000, 1_000_000, 10_000_000, 175)
    ended = usage_event("r", prompt=10, completion=5, cached=4)
    ended.labels[RATE_LABEL] = rate.label
    cost = rate.cost(Usage(10, 4, 5))
    assert cost == 116
    assert metered(ended) == MeteredRequest("tnt_a", "r", Amounts(1, 10, 5, cost))
    ended.labels[RATE_LABEL] = "no rate"
    assert metered(ended).used.spend == 0
    del ended.labels[RATE_LABEL]
    assert metered(ended).used == Amounts(1, 10, 5, 0)


async def test_the_meter_settles_what_has_ended_once_it_is_in_the_ledger(
    database: Database, redis_url: str, redis_client: redis.asyncio.Redis
) -> None:
    """Running requests are not settled by what the journal says of them meanwhile."""
    meter = JournalMeter(
        database, redis_client, "m", on_ended=ReservationSettlement(JournalSettling(redis_client))
    )
    ends, runs, listed = ("cmpl-" + digit * 32 for digit in "012")
    places = Limit("tenant", "tnt_a", "", Metric.CONCURRENT_REQUESTS, 9)
    daily = Limit("tenant", "tnt_a", "", Metric.TOKENS_PER_DAY, 1000)
    async with opened(redis_url) as quotas:
        who = caller(places, daily, tenant="tnt_a")
        for name, parts in ((ends, 1), (runs, 1), (listed, 2)):
            await quotas.reserve(name, who, "sapling", Amounts(1, 50, 50), parts=parts)
        write_events(
            redis_url,
            [
                usage_event(ends, 10, 5, finish_reason="stop"),
                usage_event(runs, 10, 5),
                usage_event(f"{listed}-0", 20, 1, finish_reason="length"),
                usage_event(f"{listed}-1", 20, 2, finish_reason="stop"),
            ],
        )
        await meter.drain()
        assert await redis_client.xlen(JOURNAL_STREAM) == 0
        states = await quotas.state("tnt_a", [places, daily])
        assert [(state.used, state.held) for state in states] == [(0, 1), (15 + 43, 100)]
