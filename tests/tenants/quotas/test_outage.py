"""Redis dies, hangs, comes back with or without what it knew: rates go on by shares, budgets wait, and at the
end everything is charged once.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis.asyncio

from cli.local.redis import start_redis
from cli.local.server import LocalServer
from tenants.errors import QuotaExhausted, QuotaUnavailable, RateLimited
from tenants.limits.kinds import Amounts, Limit, Metric
from tenants.quotas import Contract, Quotas
from tests.support.waiting import eventually
from tests.tenants.quotas.conftest import QUICK, caller, counted, limit, opened

DAILY = limit(Metric.TOKENS_PER_DAY, 1000)
PLACES = limit(Metric.CONCURRENT_REQUESTS, 3)
RPM = limit(Metric.REQUESTS_PER_MINUTE, 4)


@pytest.fixture
def own_redis(servers_dir: Path) -> Iterator[list[LocalServer]]:
    """One that keeps its data, and that a test may kill: the last of the list is the one that runs."""
    directory = Path(tempfile.mkdtemp(prefix="quo-", dir=servers_dir))
    servers = [start_redis(directory)]
    yield servers
    servers[-1].stop()
    shutil.rmtree(directory)


def killed(servers: list[LocalServer]) -> None:
    servers[-1].kill()


def back(servers: list[LocalServer], *, empty: bool = False) -> None:
    servers.append(start_redis(servers[-1].directory, ephemeral=empty))


async def kept(server: LocalServer) -> None:
    """Wait until the server has on disk what it was told."""
    async with redis.asyncio.Redis.from_url(server.url) as client:
        await client.config_set("appendfsync", "always")
        await client.set("kept", 1)


async def settles_to(quotas: Quotas, expected: list[tuple[int, int]], *limits: Limit) -> None:
    async def so() -> bool:
        try:
            return await counted(quotas, *limits) == expected
        except QuotaUnavailable:
            return False

    await eventually(so)


async def test_while_redis_is_away_rates_go_by_shares_and_budgets_wait(own_redis: list[LocalServer]) -> None:
    async with opened(own_redis[-1].url) as quotas:
        killed(own_redis)
        await eventually(lambda: quotas.away)
        with pytest.raises(QuotaUnavailable) as waits:
            await quotas.reserve("a", caller(RPM, DAILY), "sapling", Amounts(1, 1))
        assert waits.value.retry_after > 0
        who = caller(RPM)
        for number in range(4):
            reservation = await quotas.reserve(f"b{number}", who, "sapling", Amounts(1, 1))
            assert reservation.local
            quotas.settle(reservation, Amounts(1, 1))
        with pytest.raises(RateLimited) as refused:
            await quotas.reserve("c", who, "sapling", Amounts(1, 1))
        assert refused.value.local
        assert 0 < refused.value.retry_after <= 15
        with pytest.raises(QuotaExhausted):
            await quotas.reserve("d", caller(limit(Metric.TOKENS_PER_MINUTE, 5)), "sapling", Amounts(1, 6))
        back(own_redis)
        await eventually(lambda: not quotas.away)
        with pytest.raises(RateLimited) as still:
            await quotas.reserve("e", who, "sapling", Amounts(1, 1))
        assert not still.value.local, "Redis knows what was let through meanwhile"
        reservation = await quotas.reserve("f", caller(DAILY), "sapling", Amounts(1, 1))
        assert not reservation.local


async def test_contracts_go_by_shares_too_while_redis_is_away(own_redis: list[LocalServer]) -> None:
    async with opened(own_redis[-1].url) as quotas:
        killed(own_redis)
        await eventually(lambda: quotas.away)
        who, contract = caller(RPM), Contract("priority", 100)
        made = [
            await quotas.reserve(f"a{number}", who, "sapling", Amounts(1, 30, 30), None, contract)
            for number in range(2)
        ]
        assert [each.within_contract for each in made] == [True, False], "60 tokens, and 60 more"
        quotas.settle(made[0], Amounts(1, 5, 5))
        quotas.settle(made[1], Amounts(1, 30, 30))
        later = await quotas.reserve("b", who, "sapling", Amounts(1, 40, 40), None, contract)
        assert later.within_contract, "what was not used counts no longer, and what was over it never did"
        assert (quotas.num_judged_locally, quotas.num_refused_locally) == (3, 0)
        with pytest.raises(QuotaUnavailable):
            await quotas.reserve("c", caller(DAILY), "sapling", Amounts(1, 1))
        assert quotas.num_refused_locally == 1


async def test_a_share_is_of_the_processes_there_are(own_redis: list[LocalServer]) -> None:
    async with (
        opened(own_redis[-1].url, "a", timing=QUICK) as one,
        opened(own_redis[-1].url, "b", timing=QUICK),
    ):
        await asyncio.sleep(3 * QUICK.renew_every)  # they hear of each other
        killed(own_redis)
        await eventually(lambda: one.away)
        who = caller(limit(Metric.CONCURRENT_REQUESTS, 4))
        held = [await one.reserve(f"r{number}", who, "sapling", Amounts()) for number in range(2)]
        with pytest.raises(RateLimited):
            await one.reserve("r2", who, "sapling", Amounts())
        one.settle(held[0], Amounts())
        await one.reserve("r3", who, "sapling", Amounts())


async def test_a_killed_redis_that_comes_back_knows_what_is_open(own_redis: list[LocalServer]) -> None:
    """What ended meanwhile is told then; what goes on still holds; nothing is charged twice."""
    async with opened(own_redis[-1].url) as quotas:
        who = caller(PLACES, DAILY)
        ends, goes_on = [await quotas.reserve(name, who, "sapling", Amounts(1, 0, 300)) for name in "ab"]
        await kept(own_redis[-1])
        killed(own_redis)
        await eventually(lambda: quotas.away)
        quotas.settle(ends, Amounts(1, 0, 120))
        back(own_redis)
        await settles_to(quotas, [(0, 1), (120, 300)], PLACES, DAILY)
        with pytest.raises(RateLimited):
            await quotas.reserve("c", who, "sapling", Amounts(1, 0, 700))
        quotas.settle(goes_on, Amounts(1, 0, 30))
        await settles_to(quotas, [(0, 0), (150, 0)], PLACES, DAILY)


async def test_reservations_outlive_a_redis_that_is_away_for_longer_than_they_live(
    own_redis: list[LocalServer],
) -> None:
    """Nobody could renew them, so nobody may take what they hold, though they are overdue: not even whoever
    asks first.
    """
    url = own_redis[-1].url
    async with opened(url, "holder", timing=QUICK) as holder:
        who = caller(PLACES, DAILY)
        held = await holder.reserve("a", who, "sapling", Amounts(1, 0, 900))
        await asyncio.sleep(2 * QUICK.renew_every)
        own_redis[-1].process.send_signal(signal.SIGSTOP)
        await eventually(lambda: holder.away)
        await asyncio.sleep(QUICK.lifetime + 0.5)
        own_redis[-1].process.send_signal(signal.SIGCONT)
        async with opened(url, "other", timing=QUICK) as other:
            for number in range(10):
                with pytest.raises(RateLimited):
                    await other.reserve(f"b{number}", who, "sapling", Amounts(1, 0, 200))
                await asyncio.sleep(0.05)
        await eventually(lambda: not holder.away)
        holder.settle(held, Amounts(1, 0, 100))
        await settles_to(holder, [(0, 0), (100, 0)], PLACES, DAILY)


async def test_a_redis_that_comes_back_empty_is_told_all_again(own_redis: list[LocalServer]) -> None:
    """Budgets begin with the ledger, what is open is reserved again, and what ended just before counts."""

    async def read_usage(tenant_id: str, limit: Limit, start: object) -> int:
        return 100

    directory = own_redis[-1].directory
    own_redis[-1].stop()
    shutil.rmtree(directory / "redis")
    back(own_redis, empty=True)
    async with opened(own_redis[-1].url, read_usage=read_usage, timing=QUICK) as quotas:
        who = caller(PLACES, DAILY)
        first, second = [await quotas.reserve(name, who, "sapling", Amounts(1, 0, 300)) for name in "ab"]
        killed(own_redis)
        await eventually(lambda: quotas.away)
        back(own_redis, empty=True)
        await settles_to(quotas, [(0, 2), (100, 600)], PLACES, DAILY)
        quotas.settle(first, Amounts(1, 0, 10))
        quotas.settle(second, Amounts(1, 0, 20))
        await settles_to(quotas, [(0, 0), (130, 0)], PLACES, DAILY)


async def test_scripts_that_are_forgotten_are_loaded_again(own_redis: list[LocalServer]) -> None:
    async with opened(own_redis[-1].url) as quotas, redis.asyncio.Redis.from_url(own_redis[-1].url) as client:
        who = caller(PLACES)
        held = await quotas.reserve("a", who, "sapling", Amounts())
        await client.script_flush()
        other = await quotas.reserve("b", who, "sapling", Amounts())
        await client.script_flush()
        quotas.settle(held, Amounts())
        quotas.settle(other, Amounts())
        await settles_to(quotas, [(0, 0)], PLACES)


async def test_a_redis_that_hangs_is_away_soon_and_nothing_stays_reserved(
    own_redis: list[LocalServer],
) -> None:
    async with opened(own_redis[-1].url) as quotas:
        own_redis[-1].process.send_signal(signal.SIGSTOP)
        who = caller(limit(Metric.CONCURRENT_REQUESTS, 1))
        reservation = await quotas.reserve("a", who, "sapling", Amounts())
        assert reservation.local
        with pytest.raises(RateLimited):
            await quotas.reserve("b", who, "sapling", Amounts())
        quotas.settle(reservation, Amounts())
        quotas.settle(await quotas.reserve("c", who, "sapling", Amounts()), Amounts())
        own_redis[-1].process.send_signal(signal.SIGCONT)
        # It may have carried the call out after all: what nobody was told of is taken back.
        await eventually(lambda: not quotas.away)
        await settles_to(quotas, [(0, 0)], PLACES)


async def test_closing_tells_what_has_ended(own_redis: list[LocalServer]) -> None:
    url = own_redis[-1].url
    async with opened(url) as quotas:
        held = [await quotas.reserve(name, caller(PLACES, DAILY), "sapling", Amounts(1, 5)) for name in "abc"]
        for reservation in held:
            quotas.settle(reservation, Amounts(1, 5))
    async with redis.asyncio.Redis.from_url(url) as client:
        assert await client.zcard("rootstock:quota:processes") == 0
    async with opened(url, "later") as later:
        assert await counted(later, PLACES, DAILY) == [(0, 0), (15, 0)]
