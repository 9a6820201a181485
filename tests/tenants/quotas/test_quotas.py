from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime

import pytest
import redis.asyncio

from db.errors import DatabaseUnavailable
from tenants.errors import BalanceExhausted, QuotaExhausted, QuotaUnavailable, RateLimited
from tenants.limits.kinds import Amounts, Limit, Metric
from tenants.quotas import Contract, Quotas
from tenants.quotas.journal import JournalSettling, MeteredRequest
from tests.support.waiting import eventually
from tests.tenants.quotas.conftest import TENANT, caller, counted, limit, opened

RPM = limit(Metric.REQUESTS_PER_MINUTE, 5)
TPM = limit(Metric.TOKENS_PER_MINUTE, 1000)
PLACES = limit(Metric.CONCURRENT_REQUESTS, 2)
DAILY = limit(Metric.TOKENS_PER_DAY, 500)
SPEND = limit(Metric.SPEND_PER_MONTH, 100)


async def settled(quotas: Quotas, *limits: Limit, expected: list[tuple[int | None, int]]) -> None:
    async def so() -> bool:
        return await counted(quotas, *limits) == expected

    await eventually(so)


async def test_a_request_takes_of_every_limit_and_returns_what_it_does_not_use(quotas: Quotas) -> None:
    who = caller(PLACES, DAILY, SPEND)
    reservation = await quotas.reserve("a", who, "sapling", Amounts(1, 100, 50, 30))
    assert await counted(quotas, PLACES, DAILY, SPEND) == [(0, 1), (0, 150), (0, 30)]
    assert quotas.num_open == 1
    quotas.settle(reservation, Amounts(1, 100, 7, 11))
    quotas.settle(reservation, Amounts(1, 100, 50, 30))
    await settled(quotas, PLACES, DAILY, SPEND, expected=[(0, 0), (107, 0), (11, 0)])
    assert quotas.num_open == 0


async def test_all_or_nothing(quotas: Quotas) -> None:
    who = caller(PLACES, RPM, DAILY)
    with pytest.raises(QuotaExhausted) as refused:
        await quotas.reserve("a", who, "sapling", Amounts(1, 400, 101))
    assert (refused.value.limit, refused.value.resets_at) == (DAILY, None)
    assert await counted(quotas, PLACES, RPM, DAILY) == [(0, 0), (0, 0), (0, 0)]


async def test_a_refused_request_that_is_cancelled_does_not_count(quotas: Quotas) -> None:
    who = caller(RPM, TPM, DAILY)
    reservation = await quotas.reserve("a", who, "sapling", Amounts(1, 100, 100))
    quotas.cancel(reservation)
    await settled(quotas, RPM, TPM, DAILY, expected=[(0, 0), (0, 0), (0, 0)])


async def test_no_limits_ask_nobody(redis_url: str) -> None:
    quotas = Quotas("redis://127.0.0.1:1/0", "api-0")
    await quotas.start()
    reservation = await quotas.reserve("a", caller(), "sapling", Amounts(1, 1, 1))
    quotas.settle(reservation, Amounts(1, 1, 1))
    only_other_model = caller(limit(Metric.TOKENS_PER_DAY, 0, model="oak"))
    await quotas.reserve("b", only_other_model, "sapling", Amounts(1, 1, 1))
    await quotas.close()


async def test_a_rate_says_when_and_how_far(quotas: Quotas) -> None:
    who = caller(limit(Metric.REQUESTS_PER_MINUTE, 3), limit(Metric.TOKENS_PER_MINUTE, 600), DAILY)
    first = await quotas.reserve("a", who, "sapling", Amounts(1, 100, 0))
    assert first.requests is not None
    assert first.tokens is not None
    assert (first.requests.limit, first.requests.remaining) == (3, 2)
    assert 0 < first.requests.reset_seconds <= 20
    assert (first.tokens.limit, first.tokens.remaining) == (500, 400), "the tightest is the day's"
    for name in "bc":
        await quotas.reserve(name, who, "sapling", Amounts(1, 10, 0))
    with pytest.raises(RateLimited) as refused:
        await quotas.reserve("d", who, "sapling", Amounts(1, 10, 0))
    assert 0 < refused.value.retry_after <= 20
    assert refused.value.limit.metric == Metric.REQUESTS_PER_MINUTE
    assert refused.value.requests is not None
    assert refused.value.requests.remaining == 0
    assert "3 requests per minute" in str(refused.value)


async def test_what_others_hold_of_a_budget_may_come_back(quotas: Quotas) -> None:
    who = caller(DAILY)
    held = await quotas.reserve("a", who, "sapling", Amounts(1, 0, 400))
    with pytest.raises(RateLimited) as waits:
        await quotas.reserve("b", who, "sapling", Amounts(1, 0, 200))
    assert waits.value.limit == DAILY
    quotas.settle(held, Amounts(1, 0, 400))
    with pytest.raises(QuotaExhausted) as refused:
        await quotas.reserve("c", who, "sapling", Amounts(1, 0, 200))
    resets = refused.value.resets_at
    assert resets is not None
    assert (resets.hour, resets.minute, resets.second) == (0, 0, 0)
    assert resets > datetime.now(UTC)


async def test_a_balance_that_does_not_cover_a_request_says_so(quotas: Quotas) -> None:
    who = caller(limit(Metric.PREPAID_BALANCE, 100))
    with pytest.raises(BalanceExhausted):
        await quotas.reserve("a", who, "sapling", Amounts(1, 0, 0, 101))
    held = await quotas.reserve("b", who, "sapling", Amounts(1, 0, 0, 60))
    with pytest.raises(RateLimited):
        await quotas.reserve("c", who, "sapling", Amounts(1, 0, 0, 41))
    quotas.settle(held, Amounts(1, 0, 0, 60))
    with pytest.raises(BalanceExhausted):
        await quotas.reserve("d", who, "sapling", Amounts(1, 0, 0, 41))


async def test_rates_take_what_is_expected_budgets_the_worst(quotas: Quotas) -> None:
    who = caller(TPM, DAILY)
    worst, expected = Amounts(1, 0, 480), Amounts(1, 0, 64)
    reservation = await quotas.reserve("a", who, "sapling", worst, expected)
    (tokens, _), budget = await counted(quotas, TPM, DAILY)
    assert tokens is not None
    assert tokens <= 64
    assert budget == (0, 480)
    quotas.settle(reservation, Amounts(1, 0, 450))
    (tokens, _), budget = await counted(quotas, TPM, DAILY)
    assert tokens is not None
    assert tokens > 300, "more than expected is a debt"
    assert budget == (450, 0)


async def test_limits_of_a_model_are_of_all_its_versions(quotas: Quotas) -> None:
    who = caller(limit(Metric.REQUESTS_PER_MINUTE, 1, model="sapling:pirate"))
    await quotas.reserve("a", who, "sapling:pirate@1", Amounts())
    await quotas.reserve("b", who, "sapling", Amounts())
    await quotas.reserve("c", who, "sapling:poet@1", Amounts())
    with pytest.raises(RateLimited):
        await quotas.reserve("d", who, "sapling:pirate@2", Amounts())


async def test_scopes_count_by_themselves(quotas: Quotas) -> None:
    project = limit(Metric.REQUESTS_PER_DAY, 3, scope="project", of="proj_1")
    one = caller(project, limit(Metric.REQUESTS_PER_DAY, 2, scope="key", of="key_1"))
    two = caller(project, limit(Metric.REQUESTS_PER_DAY, 2, scope="key", of="key_2"))
    for name in "ab":
        quotas.settle(await quotas.reserve(name, one, "sapling", Amounts()), Amounts())
    with pytest.raises(QuotaExhausted, match="key key_1"):
        await quotas.reserve("c", one, "sapling", Amounts())
    quotas.settle(await quotas.reserve("d", two, "sapling", Amounts()), Amounts())
    with pytest.raises(QuotaExhausted, match="project proj_1"):
        await quotas.reserve("e", two, "sapling", Amounts())


async def test_a_contract_refuses_nothing(quotas: Quotas) -> None:
    contract = Contract("priority", 100)
    who = caller(PLACES)
    within = await quotas.reserve("a", who, "sapling", Amounts(1, 60), contract=contract)
    over = await quotas.reserve("b", who, "sapling", Amounts(1, 60), contract=contract)
    assert (within.within_contract, over.within_contract) == (True, False)
    quotas.settle(over, Amounts(1, 60))
    quotas.settle(within, Amounts(1, 0))
    again = await quotas.reserve("c", who, "sapling", Amounts(1, 90), contract=contract)
    assert again.within_contract, "what was not used came back, what was over was never taken"
    unbounded = await quotas.reserve(
        "d", caller(), "sapling", Amounts(1, 10**9), contract=Contract("p", None)
    )
    assert unbounded.within_contract


async def test_amounts_that_are_changed_count_at_once(quotas: Quotas) -> None:
    for name in "ab":
        await quotas.reserve(name, caller(PLACES), "sapling", Amounts())
    with pytest.raises(RateLimited):
        await quotas.reserve("c", caller(PLACES), "sapling", Amounts())
    await quotas.reserve("d", caller(limit(Metric.CONCURRENT_REQUESTS, 3)), "sapling", Amounts())


async def test_a_budget_that_redis_does_not_have_is_read_from_the_ledger_once(redis_url: str) -> None:
    asked: list[tuple[str, Limit, datetime]] = []
    go_on = asyncio.Event()

    async def read_usage(tenant_id: str, limit: Limit, start: datetime) -> int:
        asked.append((tenant_id, limit, start))
        await go_on.wait()
        return 460

    async with (
        opened(redis_url, "a", read_usage=read_usage) as one,
        opened(redis_url, "b", read_usage=read_usage) as two,
    ):
        who = caller(DAILY)
        requests = [
            asyncio.create_task(quotas.reserve(f"{n}{i}", who, "sapling", Amounts(1, 10)))
            for n, quotas in enumerate((one, two))
            for i in range(5)
        ]
        await eventually(lambda: len(asked) == 2)  # each process once, for five requests
        go_on.set()
        answers = await asyncio.gather(*requests, return_exceptions=True)
        assert sum(not isinstance(answer, Exception) for answer in answers) == 4
        assert await counted(one, DAILY) == [(460, 40)], "two seeds count once"
        day = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        assert {entry[:2] for entry in asked} == {(TENANT, DAILY)}
        assert all(abs((entry[2] - day).total_seconds()) in (0, 86400) for entry in asked)
        before = len(asked)
        with pytest.raises(QuotaExhausted):
            await one.reserve("x", who, "sapling", Amounts(1, 41))
        assert len(asked) == before


async def test_a_refused_request_does_not_make_the_ledger_be_asked_again(redis_url: str) -> None:
    asked = 0

    async def read_usage(tenant_id: str, limit: Limit, start: datetime) -> int:
        nonlocal asked
        asked += 1
        return limit.amount

    async with opened(redis_url, read_usage=read_usage) as quotas:
        for number in range(3):
            with pytest.raises(QuotaExhausted):
                await quotas.reserve(f"r{number}", caller(DAILY), "sapling", Amounts(1, 1))
    assert asked == 1


async def test_without_the_ledger_a_budget_lets_nothing_through(redis_url: str) -> None:
    async def read_usage(tenant_id: str, limit: Limit, start: datetime) -> int:
        raise DatabaseUnavailable("away")

    async with opened(redis_url, read_usage=read_usage) as quotas:
        with pytest.raises(QuotaUnavailable) as refused:
            await quotas.reserve("a", caller(DAILY), "sapling", Amounts(1, 1))
        assert refused.value.retry_after > 0
        await quotas.reserve("b", caller(RPM), "sapling", Amounts(1, 1))
        [state] = await quotas.state(TENANT, [DAILY])
        assert (state.used, state.remaining) == (None, None)


async def test_a_request_that_is_given_up_while_it_reserves_holds_nothing(
    quotas: Quotas, redis_client: redis.asyncio.Redis
) -> None:
    for number in range(20):
        task = asyncio.create_task(quotas.reserve(f"r{number}", caller(PLACES), "sapling", Amounts()))
        for _ in range(number % 4):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            quotas.cancel(await task)
    await settled(quotas, PLACES, expected=[(0, 0)])
    assert await redis_client.zcard("rootstock:quota:{tnt_1}:open") == 0


async def test_ids_are_used_once(quotas: Quotas) -> None:
    await quotas.reserve("a", caller(PLACES), "sapling", Amounts())
    with pytest.raises(ValueError, match="'a'"):
        await quotas.reserve("a", caller(PLACES), "sapling", Amounts())
    assert await counted(quotas, PLACES) == [(0, 1)]


async def test_the_journal_settles_what_the_api_does_not(
    quotas: Quotas, redis_client: redis.asyncio.Redis
) -> None:
    name = "cmpl-" + "0" * 32
    listed = "cmpl-" + "1" * 32
    who = caller(PLACES, DAILY, SPEND)
    reservation = await quotas.reserve(name, who, "sapling", Amounts(1, 100, 50, 30))
    await quotas.reserve(listed, who, "sapling", Amounts(1, 100, 50, 30), parts=2)
    journal = JournalSettling(redis_client)
    used = MeteredRequest(TENANT, name, Amounts(1, 100, 20, 9))
    strangers = [
        MeteredRequest(TENANT, "chatcmpl-" + "2" * 32, Amounts()),
        MeteredRequest("tnt_other", name, Amounts()),
    ]
    assert await journal.settle([used, used, *strangers]) == 1
    assert await counted(quotas, PLACES, DAILY, SPEND) == [(0, 1), (120, 150), (9, 30)]
    quotas.settle(reservation, Amounts(1, 100, 50, 30))  # the API was slower: what the journal says holds
    parts = [MeteredRequest(TENANT, f"{listed}-{k}", Amounts(1, 10, k, k)) for k in (1, 0)]
    assert await journal.settle(parts) == 2
    await settled(quotas, PLACES, DAILY, SPEND, expected=[(0, 0), (141, 0), (10, 0)])
    assert await journal.settle([]) == 0
