"""Processes that die or are told to: what readers learn, and that the bill is right."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from engine.client import EngineClient, EngineGone, Generation, RequestRejected
from engine.protocol import TokenChunk
from engine.server import STALL_EXIT_CODE, EngineServer
from engine.transport.start_estimate import RESTART_PAUSE
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
from tests.engine.process.faulty_engine import HANGS, RAISES, SLOW, THREADLESS
from tests.support.waiting import AwakeClock


async def collect(generation: Generation, into: list[TokenChunk]) -> None:
    async for chunks in generation:
        into += chunks


async def test_kill_9_of_the_engine_fails_readers_at_once_and_bills_what_they_got(
    engine: EngineProcess, connect: Connect, redis_url: str
) -> None:
    client = await connect(engine)
    first = client.info
    done = client.submit(submission("done", 5))
    await read(done)
    received: dict[str, list[TokenChunk]] = {f"r{i}": [] for i in range(8)}
    generations = [client.submit(submission(name, 5000)) for name in received]
    readers = [
        asyncio.create_task(collect(generation, received[generation.request_id]))
        for generation in generations
    ]
    await until(lambda: min(len(chunks) for chunks in received.values()) > 20)

    async with AwakeClock() as clock:
        engine.kill()
        failures = await asyncio.gather(*readers, return_exceptions=True)
        assert clock.seconds < 1.0
    assert [type(failure) for failure in failures] == [EngineGone] * 8
    assert not client.ready
    assert first is not None
    assert 0 < first.start_seconds < 60
    with pytest.raises(EngineGone, match="not connected") as away:
        client.submit(submission("later", 5))
    assert away.value.retry_after is not None
    assert 1 <= away.value.retry_after <= first.start_seconds + RESTART_PAUSE

    engine.start()
    async with asyncio.timeout(60):
        second = await client.wait_ready()
    assert second.incarnation != first.incarnation
    events = journal_events(redis_url)
    bills = billed(events)
    assert set(bills) == {"done", *received}
    assert bills["done"].usage.completion_tokens == 5
    for name, chunks in received.items():
        num_received = len(tokens_of(chunks))
        assert num_received <= bills[name].usage.completion_tokens <= num_received + 2
        assert bills[name].finish_reason == "error"
        assert bills[name].incarnation == first.incarnation
        assert bills[name].usage.prompt_tokens == 3
        assert bills[name].labels == {"key_id": "key-1"}
    assert len(tokens_of(await read(client.submit(submission("after", 5))))) == 5

    engine.kill()
    engine.start()
    async with asyncio.timeout(60):
        await until(lambda: client.ready and client.info is not None and client.info != second)
    assert len(journal_events(redis_url)) == len(events) + 1, "leftovers are billed once"


async def test_a_bill_after_kill_9_knows_what_the_prompt_cache_saved(
    engine: EngineProcess, connect: Connect, redis_url: str
) -> None:
    client = await connect(engine)
    prompt_ids = list(range(1, 41))
    await read(client.submit(submission("first", 2, prompt_ids=prompt_ids)))
    received: list[TokenChunk] = []
    reader = asyncio.create_task(
        collect(client.submit(submission("again", 5000, prompt_ids=prompt_ids)), received)
    )
    await until(lambda: len(received) > 2)

    engine.kill()
    assert isinstance((await asyncio.gather(reader, return_exceptions=True))[0], EngineGone)
    engine.start()
    async with asyncio.timeout(60):
        await client.wait_ready()
    bill = billed(journal_events(redis_url))["again"]
    assert bill.usage.cached_tokens == 32, "two full blocks of 16"
    assert len(tokens_of(received)) <= bill.usage.completion_tokens <= len(tokens_of(received)) + 2
    assert bill.scheduled_at is not None


@pytest.fixture
def doomed(engine: EngineProcess) -> Iterator[subprocess.Popen[bytes]]:
    """A client process with four endless requests."""
    command = [sys.executable, "-m", "tests.engine.process.doomed_client", engine.endpoint]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        yield process
        process.kill()


async def test_kill_9_of_a_client_aborts_its_requests_and_bills_them(
    engine: EngineProcess, doomed: subprocess.Popen[bytes], connect: Connect, redis_url: str
) -> None:
    watcher = await connect(engine)
    mine = watcher.submit(submission("mine", 1000))
    await until(lambda: watcher.stats is not None and watcher.stats.running == 5)
    doomed.kill()
    await until(lambda: watcher.stats is not None and watcher.stats.aborted == 4)
    await until(lambda: len(billed(journal_events(redis_url))) >= 4)
    bills = billed(journal_events(redis_url))
    for i in range(4):
        assert bills[f"d{i}"].finish_reason == "abort"
        assert 0 < bills[f"d{i}"].usage.completion_tokens < 1000
    mine.abort()
    assert len(tokens_of(await read(mine))) > 50, "another client's request is not disturbed"


async def test_a_client_that_closes_has_its_requests_aborted_at_once(
    engine: EngineProcess, connect: Connect, redis_url: str
) -> None:
    watcher = await connect(engine)
    leaving = EngineClient(engine.endpoint, "leaving")
    await leaving.start()
    await leaving.wait_ready()
    generation = leaving.submit(submission("r1", 5000))
    await anext(generation)
    await leaving.close()
    await leaving.close()  # harmless
    with pytest.raises(EngineGone, match="closing"):
        await read(generation)
    await until(lambda: "r1" in billed(journal_events(redis_url)))
    await until(lambda: watcher.stats is not None and watcher.stats.running == 0)


async def test_a_client_finds_an_engine_that_starts_later(folder: Path, redis_url: str) -> None:
    for process in engine_process(folder, redis_url):
        client = EngineClient(process.endpoint, "early")
        await client.start()
        assert not client.ready
        with pytest.raises(EngineGone):
            client.submit(submission("r1", 5))
        await asyncio.sleep(0.3)
        process.start()
        async with asyncio.timeout(60):
            await client.wait_ready()
        assert len(tokens_of(await read(client.submit(submission("r1", 5))))) == 5
        await client.close()


async def test_an_engine_that_stops_speaking_counts_as_gone(engine: EngineProcess, connect: Connect) -> None:
    client = await connect(engine)
    generation = client.submit(submission("r1", 5000))
    await anext(generation)
    engine.signal(signal.SIGSTOP)
    async with AwakeClock() as clock:
        with pytest.raises(EngineGone):
            await read(generation)
        assert clock.seconds < 5.0
    engine.signal(signal.SIGCONT)
    async with asyncio.timeout(60):
        await client.wait_ready()
    await until(lambda: client.stats is not None and client.stats.aborted == 1)


async def test_a_machine_that_stood_still_loses_no_stream(
    engine: EngineProcess, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.client.SILENCE_LIMIT", 1.0)
    client = await connect(engine)
    generation = client.submit(submission("r1", 400))
    await anext(generation)
    engine.signal(signal.SIGSTOP)
    time.sleep(1.5)  # noqa: ASYNC251 - this process stands still as well, and wakes first
    await asyncio.sleep(0.3)
    engine.signal(signal.SIGCONT)
    await read(generation)
    assert generation.usage is not None
    assert generation.usage.completion_tokens == 400


async def test_sigterm_finishes_what_runs_refuses_what_comes_and_exits_0(
    engine: EngineProcess, connect: Connect, redis_url: str
) -> None:
    client = await connect(engine)
    generation = client.submit(submission("r1", 60))
    await anext(generation)
    engine.signal(signal.SIGTERM)
    await until(lambda: "draining" in engine.read_log())
    with pytest.raises(RequestRejected) as refusal:
        await read(client.submit(submission("r2", 5)))
    assert refusal.value.code == "draining"
    await read(generation)
    assert generation.usage is not None
    assert generation.usage.completion_tokens == 60
    assert await asyncio.to_thread(engine.wait) == 0
    assert set(billed(journal_events(redis_url))) == {"r1"}


async def test_a_reader_too_busy_to_look_gets_the_last_words_of_an_engine_that_has_exited(
    engine: EngineProcess, connect: Connect
) -> None:
    client = await connect(engine)
    generation = client.submit(submission("r1", 60))
    await anext(generation)
    engine.signal(signal.SIGTERM)
    assert engine.wait() == 0  # blocks this process's event loop
    await read(generation)
    assert generation.usage is not None
    assert generation.usage.completion_tokens == 60


@pytest.mark.parametrize("second_signal", [False, True], ids=["deadline", "second signal"])
async def test_a_drain_out_of_time_aborts_bills_and_exits_0(
    folder: Path, redis_url: str, connect: Connect, second_signal: bool
) -> None:
    for process in engine_process(folder, redis_url, drain_seconds=60 if second_signal else 0.3):
        process.start()
        client = await connect(process)
        generation = client.submit(submission("r1", 5000))
        await anext(generation)
        process.signal(signal.SIGTERM)
        if second_signal:
            await until(lambda log=process.read_log: "draining" in log())
            process.signal(signal.SIGTERM)
        chunks = await read(generation)
        assert chunks[-1].finish_reason == "abort"
        assert generation.usage is not None
        assert await asyncio.to_thread(process.wait) == 0
        assert billed(journal_events(redis_url))["r1"].usage == generation.usage


@pytest.fixture
def faulty(folder: Path, redis_url: str) -> Iterator[EngineProcess]:
    for process in engine_process(folder, redis_url, module="tests.engine.process.faulty_engine"):
        process.start()
        yield process


@pytest.mark.parametrize(("seed", "code"), [(RAISES, 1), (HANGS, STALL_EXIT_CODE)], ids=["raises", "hangs"])
async def test_a_broken_step_ends_the_engine_and_everything_in_flight_is_billed(
    faulty: EngineProcess, connect: Connect, redis_url: str, seed: int, code: int
) -> None:
    client = await connect(faulty)
    received: list[TokenChunk] = []
    with pytest.raises(EngineGone):
        await collect(client.submit(submission("r1", 100, sampling={"seed": seed})), received)
    assert await asyncio.to_thread(faulty.wait) == code
    assert ("the device is lost" if seed == RAISES else "a step hangs") in faulty.read_log()
    if seed == HANGS:
        faulty.start()
        async with asyncio.timeout(60):
            await client.wait_ready()
    bill = billed(journal_events(redis_url))["r1"]
    assert len(tokens_of(received)) <= bill.usage.completion_tokens == 2
    assert bill.finish_reason == "error"


async def test_sigterm_while_loading_ends_the_engine_at_once(folder: Path, redis_url: str) -> None:
    module = "tests.engine.process.faulty_engine"
    for process in engine_process(folder, redis_url, module=module, base_name=SLOW):
        process.start()
        client = EngineClient(process.endpoint, "early")
        await client.start()
        await until(lambda log=process.read_log: "client connected" in log())
        assert not client.ready
        process.signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 5) == 0
        await client.close()


async def test_a_thread_that_dies_takes_the_engine_with_it(folder: Path, redis_url: str) -> None:
    module = "tests.engine.process.faulty_engine"
    for process in engine_process(folder, redis_url, module=module, base_name=THREADLESS):
        process.start()
        assert await asyncio.to_thread(process.wait, 15) == STALL_EXIT_CODE
        assert "a thread died" in process.read_log()
        assert "ZeroDivisionError" in process.read_log()


async def test_an_engine_without_a_base_says_so_and_exits_1(folder: Path, redis_url: str) -> None:
    for process in engine_process(folder, redis_url, null=False):
        process.start()
        assert await asyncio.to_thread(process.wait) == 1
        assert "ROOTSTOCK_ENGINE_BASE is not set" in process.read_log()


def test_an_engine_that_cannot_listen_or_has_not_its_files_alone_does_not_start(
    folder: Path, redis_url: str
) -> None:
    def server(endpoint: str) -> EngineServer:
        return EngineServer(
            endpoint=endpoint, redis_url=redis_url, state_dir=folder, engine_id="engine-0", drain_seconds=1
        )

    with pytest.raises(zmq.ZMQError, match=r"cannot listen on tcp://192\.0\.2\.1:5700"):
        server("tcp://192.0.2.1:5700")
    first = server(f"ipc://{folder}/a.sock")
    with pytest.raises(BlockingIOError, match="in use by another engine"):
        server(f"ipc://{folder}/b.sock")
    first.close()
    server(f"ipc://{folder}/c.sock").close()
