"""Redis dies, hangs and returns under a running engine: tokens flow on, and every request is billed."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cli.local.redis import start_redis
from cli.local.server import LocalServer
from engine.protocol import UsageEvent
from tests.engine.process.conftest import Connect
from tests.engine.process.engines import (
    EngineProcess,
    billed,
    engine_process,
    journal_events,
    read,
    submission,
    tokens_of,
    until,
)
from tests.support.waiting import AwakeClock


@pytest.fixture
def own_redis(servers_dir: Path) -> Iterator[LocalServer]:
    """One that a test may take down: the session's own must live on."""
    directory = Path(tempfile.mkdtemp(prefix="out-", dir=servers_dir))
    with start_redis(directory, ephemeral=True) as server:
        yield server
    shutil.rmtree(directory)


@pytest.fixture
def engine(folder: Path, own_redis: LocalServer) -> Iterator[EngineProcess]:
    for process in engine_process(folder, own_redis.url):
        process.start()
        yield process


async def test_requests_run_and_end_while_redis_is_dead_and_are_billed_when_it_is_back(
    engine: EngineProcess, connect: Connect, own_redis: LocalServer
) -> None:
    client = await connect(engine)
    own_redis.stop()
    generations = [client.submit(submission(f"r{i}", 30)) for i in range(20)]
    for chunks in await asyncio.gather(*map(read, generations)):
        assert len(tokens_of(chunks)) == 30
    await until(lambda: client.stats is not None and client.stats.journal_spooled == 20)
    held = [msgspec.msgpack.decode(one, type=UsageEvent) for one in await client.spooled(20)]
    assert {event.request_id: event.usage.completion_tokens for event in held} == {
        f"r{i}": 30 for i in range(20)
    }

    with start_redis(own_redis.directory, ephemeral=True) as back:
        await read(client.submit(submission("after", 5)))
        await until(lambda: len(billed(journal_events(back.url))) == 21)
        bills = billed(journal_events(back.url))
        assert [bills[f"r{i}"].usage.completion_tokens for i in range(20)] == [30] * 20
        await until(lambda: client.stats is not None and client.stats.journal_spooled == 0)
        assert await client.spooled(20) == []


async def test_an_engine_that_dies_without_redis_is_billed_by_the_next(
    engine: EngineProcess, connect: Connect, own_redis: LocalServer
) -> None:
    client = await connect(engine)
    own_redis.stop()
    await read(client.submit(submission("done", 7)))
    running = client.submit(submission("running", 5000))
    received = tokens_of(await anext(running))
    engine.kill()
    engine.start()
    await until(lambda: not client.ready)
    async with asyncio.timeout(60):
        await client.wait_ready()
    with start_redis(own_redis.directory, ephemeral=True) as back:
        await until(lambda: len(billed(journal_events(back.url))) == 2)
        bills = billed(journal_events(back.url))
        assert bills["done"].usage.completion_tokens == 7
        assert bills["running"].usage.completion_tokens >= len(received)
        assert bills["running"].finish_reason == "error"


async def test_tokens_do_not_wait_for_a_redis_that_hangs(
    engine: EngineProcess, connect: Connect, own_redis: LocalServer
) -> None:
    client = await connect(engine)
    watched = client.submit(submission("watched", 5000))
    await anext(watched)
    own_redis.process.send_signal(signal.SIGSTOP)
    try:
        ending = [client.submit(submission(f"r{i}", 2 + i)) for i in range(10)]
        ends = asyncio.gather(*map(read, ending))
        longest = 0.0
        async with AwakeClock() as clock:
            while not ends.done():
                last = clock.seconds
                await anext(watched)
                longest = max(longest, clock.seconds - last)
        assert longest < 0.5, "the journal waits a second for an answer; the stream must not"
        assert [generation.usage is not None for generation in ending] == [True] * 10
    finally:
        own_redis.process.send_signal(signal.SIGCONT)
