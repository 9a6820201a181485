"""Looking into an engine process: every client gets the picture in time, and learns that there is none."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.client import EngineClient
from engine.gauges import EngineView
from tests.engine.process import faulty_engine
from tests.engine.process.conftest import Connect
from tests.engine.process.engines import EngineProcess, engine_process, read, submission, until


@pytest.fixture
def engine(folder: Path, redis_url: str) -> Iterator[EngineProcess]:
    """Steps overlap, as on a GPU: a view is taken while one runs."""
    for process in engine_process(folder, redis_url, null_depth=1):
        process.start()
        yield process


async def look(client: EngineClient, until: Callable[[EngineView], bool] = lambda view: True) -> EngineView:
    async with asyncio.timeout(20):
        while True:
            view = await client.inspect(10)
            assert view is not None
            if until(view):
                return view
            await asyncio.sleep(0.05)


async def test_all_clients_see_what_runs_and_what_the_last_seconds_were(
    engine: EngineProcess, connect: Connect
) -> None:
    first, second = await connect(engine), await connect(engine)
    idle = await look(first)
    assert (idle.stats.running, idle.shares, idle.seconds) == (0, [], [])
    generations = [first.submit(submission(f"r{i}", 5000, tenant=f"t{i % 2}")) for i in range(4)]
    readers = [asyncio.create_task(read(generation)) for generation in generations]
    await until(lambda: first.stats is not None and first.stats.running == 4)
    view = await look(first, lambda view: bool(view.seconds))
    assert [(share.tenant, share.rows) for share in view.shares] == [("t0", 2), ("t1", 2)]
    assert view.decode_rows == [0, 4, 0]
    assert 0.005 < view.step_p50 < 5
    assert sum(view.seconds[-1].decode_rows) <= 4 * view.seconds[-1].steps + 4
    one, same, other = await asyncio.gather(look(first), look(first), look(second))
    assert one is same, "who asks while an answer is on its way gets it too"
    assert other.stats.incarnation == one.stats.incarnation
    assert other.stats.running == 4
    for generation in generations:
        generation.abort()
    await asyncio.gather(*readers)


async def test_a_draining_engine_says_so_and_one_that_is_gone_says_nothing(
    engine: EngineProcess, connect: Connect
) -> None:
    client = await connect(engine)
    answer = asyncio.create_task(read(client.submit(submission("r", 200))))
    await until(lambda: client.stats is not None and client.stats.running == 1)
    assert not (await look(client)).stats.draining
    engine.signal(signal.SIGTERM)
    await look(client, lambda view: view.stats.draining)
    await answer
    assert engine.wait() == 0
    await until(lambda: not client.ready)
    assert await client.inspect(5) is None
    assert not client.is_starting


@pytest.fixture
def loading(folder: Path, redis_url: str) -> Iterator[EngineProcess]:
    """Takes a minute to load, once started."""
    yield from engine_process(folder, redis_url, module=faulty_engine.__name__, base_name=faulty_engine.SLOW)


async def test_an_engine_that_loads_is_told_from_one_that_is_gone(loading: EngineProcess) -> None:
    client = EngineClient(loading.endpoint, "test")
    await client.start()
    try:
        assert not client.is_starting
        loading.start()
        await until(lambda: client.is_starting)
        assert await client.inspect(5) is None
        loading.kill()
        await until(lambda: not client.is_starting)
    finally:
        await client.close()


async def test_an_engine_that_stands_still_is_not_waited_for(engine: EngineProcess, connect: Connect) -> None:
    client = await connect(engine)
    await look(client)
    engine.signal(signal.SIGSTOP)
    try:
        assert await client.inspect(0.2) is None
    finally:
        engine.signal(signal.SIGCONT)
    assert (await look(client)).stats.running == 0
