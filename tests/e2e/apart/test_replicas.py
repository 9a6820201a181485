"""Three engines and two API processes behind one address: killed and drained one at a time."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.stack import Stack
from tests.e2e.streams import Crowd, Stream, read_stream

NUM_STREAMS = 16
MAX_TOKENS = 120


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("up") / "data", "--replicas", "3", "--api-processes", "2")
    try:
        stack.start()
        yield stack
    finally:
        stack.finish()


def engine(stack: Stack, number: int) -> int | None:
    return stack.pid_of(f"engine-{number}")


async def back(stack: Stack, number: int, former: int) -> None:
    """Returns once another process runs as this engine, and API processes send it requests."""
    async with asyncio.timeout(90):
        while engine(stack, number) in (None, former):  # noqa: ASYNC110 - another process's state
            await asyncio.sleep(0.05)
        for _ in range(8):  # either API process may answer
            while f"engine-{number}" not in await asyncio.to_thread(stack.serving):  # noqa: ASYNC110
                await asyncio.sleep(0.2)


async def test_a_killed_replica_fails_its_streams_and_no_other(replicas: Stack) -> None:
    rows_before = replicas.ledger()
    victim = engine(replicas, 1)
    assert victim is not None
    async with replicas.client() as client:
        crowd = Crowd(client, replicas.models, NUM_STREAMS, MAX_TOKENS)
        await crowd.all_generating(4)
        os.kill(victim, signal.SIGKILL)
        streams = await crowd.ended()
        lost = [stream for stream in streams if stream.error is not None]
        assert 0 < len(lost) < NUM_STREAMS
        assert all("engine" in str(stream.error).lower() for stream in lost)
        for stream in streams:
            assert stream.error is not None or stream.num_received == MAX_TOKENS
        for model in replicas.models:
            answer = await read_stream(client, Stream(model, "8 + 5"), max_tokens=4)
            assert answer.error is None, "others have taken over"
    await back(replicas, 1, victim)
    await asyncio.to_thread(replicas.wait_until_metered)
    rows = {id_: row for id_, row in replicas.ledger().items() if id_ not in rows_before}
    for stream in streams:
        assert stream.num_received <= rows[stream.id].completion <= MAX_TOKENS
    for stream in lost:
        assert rows[stream.id].finish_reason == "error"


async def test_a_drained_replica_loses_nothing(replicas: Stack) -> None:
    rows_before = replicas.ledger()
    victim = engine(replicas, 2)
    assert victim is not None
    async with replicas.client() as client:
        crowd = Crowd(client, replicas.models, NUM_STREAMS, MAX_TOKENS)
        await crowd.all_generating(4)
        os.kill(victim, signal.SIGTERM)
        later = Crowd(client, replicas.models, NUM_STREAMS, 20)
        streams = await crowd.ended() + await later.ended()
    assert [stream.error for stream in streams if stream.error is not None] == []
    await back(replicas, 2, victim)
    await asyncio.to_thread(replicas.wait_until_metered)
    rows = {id_: row for id_, row in replicas.ledger().items() if id_ not in rows_before}
    assert rows.keys() == {stream.id for stream in streams}
    for stream in streams:
        assert rows[stream.id].completion == stream.usage.completion_tokens == stream.num_received


def test_each_api_process_has_an_address_for_its_metrics(replicas: Stack) -> None:
    listed = re.search(r"^Metrics: (.*)$", replicas.output, re.MULTILINE)
    assert listed is not None
    seen = []
    for url in listed[1].split(", "):
        shown = {started_at(url) for _ in range(6)}
        assert len(shown) == 1, "one process answers there"
        seen += shown
    assert len(set(seen)) == 2
    assert {started_at(f"{replicas.url}/metrics") for _ in range(20)} <= set(seen)


def started_at(url: str) -> str:
    found = re.search(r"^process_start_time_seconds (\S+)$", httpx.get(url, timeout=5).text, re.MULTILINE)
    assert found is not None
    return found[1]


def test_both_api_processes_and_all_engines_stop_in_order(replicas: Stack) -> None:
    replicas.process.send_signal(signal.SIGTERM)
    assert replicas.process.wait(90) == 0, replicas.output
    assert "all usage is in the ledger" in replicas.output
    logs = {path.name for path in (replicas.data / "logs").iterdir()}
    assert {f"engine-{number}.log" for number in range(3)} | {"api-0.log", "api-1.log"} <= logs
    assert {path.name for path in (replicas.data / "engine").iterdir()} == {
        "engine-0",
        "engine-1",
        "engine-2",
    }
