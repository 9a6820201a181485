"""A rate limit over a pause of Redis: no stretch of time sees more than the burst and what drains in it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis.asyncio

from cli.local.redis import start_redis
from cli.local.server import LocalServer
from tenants.errors import RateLimited
from tenants.limits.kinds import Amounts, Limit, Metric
from tenants.quotas import Contract, Quotas
from tests.support.waiting import eventually
from tests.tenants.quotas.conftest import QUICK, caller, counted, limit, opened

RPM = limit(Metric.REQUESTS_PER_MINUTE, 240)


@pytest.fixture(scope="module")
def own_redis(servers_dir: Path) -> Iterator[LocalServer]:
    """One that a test may pause."""
    directory = Path(tempfile.mkdtemp(prefix="quo-", dir=servers_dir))
    server = start_redis(directory, ephemeral=True)
    yield server
    server.stop()
    shutil.rmtree(directory)


@pytest.fixture(autouse=True)
async def emptied(own_redis: LocalServer) -> None:
    async with redis.asyncio.Redis.from_url(own_redis.url) as client:
        await client.flushall()


@contextmanager
def paused(server: LocalServer) -> Iterator[None]:
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


class Client:
    """Sends requests to processes in turn, and counts those that are let through."""

    def __init__(self, *limits: Limit) -> None:
        self.caller = caller(*limits)
        self.began = time.monotonic()
        self.num_taken = 0
        self.num_sent = 0
        self.tokens = 1

    async def send(self, quotas: Quotas) -> bool:
        self.num_sent += 1
        cost = Amounts(1, self.tokens)
        try:
            reservation = await quotas.reserve(f"r{self.num_sent}", self.caller, "sapling", cost)
        except RateLimited:
            return False
        quotas.settle(reservation, cost)
        self.num_taken += 1
        return True

    async def send_until_refused(self, *processes: Quotas) -> int:
        before = self.num_taken
        for quotas in processes:
            while await self.send(quotas):
                pass
        return self.num_taken - before

    @property
    def bound(self) -> float:
        """What a limit of 240 a minute allows since the client began."""
        return 240 + 4 * (time.monotonic() - self.began)


async def test_a_pause_after_the_burst_gives_no_second_burst(own_redis: LocalServer) -> None:
    async with opened(own_redis.url, timing=QUICK) as quotas:
        client = Client(RPM)
        assert await client.send_until_refused(quotas) >= 240
        with paused(own_redis):
            await eventually(lambda: quotas.away)
            await client.send_until_refused(quotas)
            assert client.num_taken <= client.bound
        await eventually(lambda: not quotas.away)
        await client.send_until_refused(quotas)
        assert client.num_taken <= client.bound


async def test_what_a_pause_let_through_counts_after_it(own_redis: LocalServer) -> None:
    async with opened(own_redis.url, timing=QUICK) as quotas:
        client = Client(RPM)
        assert await client.send(quotas)
        with paused(own_redis):
            await eventually(lambda: quotas.away)
            assert await client.send_until_refused(quotas) >= 239, "nobody used the rest of the burst"
        await eventually(lambda: not quotas.away)
        await client.send_until_refused(quotas)
        assert client.num_taken <= client.bound


async def test_what_a_pause_let_through_is_told_at_once(own_redis: LocalServer) -> None:
    """Other processes are to know before this one has another request."""
    async with opened(own_redis.url, timing=QUICK) as quotas:
        client = Client(RPM)
        with paused(own_redis):
            await eventually(lambda: quotas.away)
            await client.send_until_refused(quotas)
        async with opened(own_redis.url, "looker") as looker:

            async def is_known() -> bool:
                ((used, _),) = await counted(looker, RPM)
                return (used or 0) > 200

            await eventually(is_known, 10)


async def test_several_processes_hold_the_bound_over_a_pause(own_redis: LocalServer) -> None:
    """One of them used the burst, so the other has nothing left of it, though it never heard of that."""
    async with (
        opened(own_redis.url, "a", timing=QUICK) as one,
        opened(own_redis.url, "b", timing=QUICK) as other,
    ):
        await asyncio.sleep(3 * QUICK.renew_every)  # they hear of each other
        client = Client(RPM)
        assert await client.send_until_refused(one) >= 240
        with paused(own_redis):
            await eventually(lambda: one.away and other.away)
            await client.send_until_refused(one, other)
            assert client.num_taken <= client.bound
            await asyncio.sleep(0.6)  # a share is 120 a minute
            assert await client.send_until_refused(one, other) >= 1, "what drains is shared"
            assert client.num_taken <= client.bound
        await eventually(lambda: not one.away and not other.away)
        await client.send_until_refused(one, other)
        assert client.num_taken <= client.bound


async def test_two_pauses_in_a_row_add_nothing(own_redis: LocalServer) -> None:
    async with opened(own_redis.url, timing=QUICK) as quotas:
        client = Client(RPM)
        for _ in range(2):
            with paused(own_redis):
                await eventually(lambda: quotas.away)
                await client.send_until_refused(quotas)
            await eventually(lambda: not quotas.away)
            await client.send_until_refused(quotas)
            assert client.num_taken <= client.bound


async def test_what_is_let_through_while_redis_answers_errors_is_told_too(own_redis: LocalServer) -> None:
    """The connection stays: no new one says that Redis is back."""
    async with (
        opened(own_redis.url, timing=QUICK) as quotas,
        redis.asyncio.Redis.from_url(own_redis.url) as other,
    ):
        client = Client(RPM)
        assert await client.send(quotas)
        await other.config_set("min-replicas-to-write", 1)  # writes are refused: NOREPLICAS
        try:
            assert await client.send_until_refused(quotas) >= 239
            assert not quotas.away
        finally:
            await other.config_set("min-replicas-to-write", 0)
        await client.send_until_refused(quotas)
        assert client.num_taken <= client.bound


async def test_a_contract_is_kept_over_a_pause(own_redis: LocalServer) -> None:
    contract, who = Contract("priority", 100), caller(RPM)
    async with opened(own_redis.url, timing=QUICK) as quotas:

        async def is_within(name: str, tokens: int) -> bool:
            cost = Amounts(1, tokens)
            return (await quotas.reserve(name, who, "sapling", cost, None, contract)).within_contract

        assert await is_within("a", 60)
        with paused(own_redis):
            await eventually(lambda: quotas.away)
            assert not await is_within("b", 60), "60 of 100 are used"
            assert await is_within("c", 40)
        await eventually(lambda: not quotas.away)
        assert not await is_within("d", 40), "40 were used while Redis was away"


async def test_places_held_in_redis_count_to_the_share(own_redis: LocalServer) -> None:
    who = caller(limit(Metric.CONCURRENT_REQUESTS, 3))
    async with opened(own_redis.url, timing=QUICK) as quotas:
        held = [await quotas.reserve(name, who, "sapling", Amounts()) for name in "ab"]
        with paused(own_redis):
            await eventually(lambda: quotas.away)
            assert (await quotas.reserve("c", who, "sapling", Amounts())).local
            with pytest.raises(RateLimited):
                await quotas.reserve("d", who, "sapling", Amounts())
            quotas.settle(held[0], Amounts())
            await quotas.reserve("e", who, "sapling", Amounts())


class DeafLine:
    """A proxy before Redis on which, while `deaf`, commands arrive and no answer comes back."""

    def __init__(self, url: str) -> None:
        self._path = url.removeprefix("unix://").partition("?")[0]
        self.deaf = False
        self.num_unheard = 0
        """Answers that were kept back."""
        self.url = ""
        self._connections: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> DeafLine:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await asyncio.gather(*self._connections)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.append(task)
        from_redis, to_redis = await asyncio.open_unix_connection(self._path)
        back = asyncio.create_task(self._pass_back(from_redis, writer))
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                to_redis.write(data)
        for each in (to_redis, writer):
            each.close()
            with contextlib.suppress(ConnectionError):
                await each.wait_closed()
        await back

    async def _pass_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if self.deaf:
                    self.num_unheard += 1
                else:
                    writer.write(data)


async def test_a_reservation_whose_answer_was_lost_is_taken_back(own_redis: LocalServer) -> None:
    """Redis made it, though this process never heard: without a withdrawal its place would stay held."""
    places = limit(Metric.CONCURRENT_REQUESTS, 2)
    async with DeafLine(own_redis.url) as line, opened(line.url) as quotas, opened(own_redis.url) as other:
        line.deaf = True
        reservation = await quotas.reserve("a", caller(places), "sapling", Amounts())
        assert reservation.local
        assert line.num_unheard, "Redis has answered"
        assert await counted(other, places) == [(0, 1)]
        line.deaf = False

        async def returned() -> bool:
            return await counted(other, places) == [(0, 0)]

        await eventually(returned)
        quotas.settle(reservation, Amounts())


async def test_a_caller_that_gives_up_leaves_nothing_held(own_redis: LocalServer) -> None:
    places = limit(Metric.CONCURRENT_REQUESTS, 2)
    async with DeafLine(own_redis.url) as line, opened(line.url) as quotas, opened(own_redis.url) as other:
        line.deaf = True
        asking = asyncio.create_task(quotas.reserve("a", caller(places), "sapling", Amounts()))
        await eventually(lambda: line.num_unheard > 0)
        asking.cancel()
        line.deaf = False

        async def returned() -> bool:
            return await counted(other, places) == [(0, 0)]

        await eventually(returned)
