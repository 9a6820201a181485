"""The traffic of the gateway's benchmark: what it counts, and that nothing wrong counts as an answer."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from benchmarks.gateway_litellm import OUTPUT_TOKENS, STREAM_TOKENS, NullUpstream
from benchmarks.gateway_site import BusyCores, Cores
from benchmarks.gateway_traffic import Outcome, Task, run


class Refusing(NullUpstream):
    whole = b'HTTP/1.1 429 x\r\ncontent-length: 29\r\n\r\n{"error":{"code":"too_many"}}'


class CutShort(NullUpstream):
    stream = NullUpstream.stream.replace(b"data: [DONE]", b"data: [NONE]")


class Stingy(NullUpstream):
    whole = NullUpstream.whole.replace(b'"completion_tokens": 4', b'"completion_tokens": 3')


@asynccontextmanager
async def serving(protocol: Callable[[], asyncio.Protocol]) -> AsyncIterator[str]:
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/chat/completions"
    finally:
        server.close()


async def outcome(protocol: Callable[[], asyncio.Protocol], **changes: Any) -> Outcome:
    chosen: dict[str, Any] = {"max_tokens": OUTPUT_TOKENS, "seconds": 0.3, "at_once": 4, "keys": ["key"]}
    async with serving(protocol) as url:
        return await run(Task(urls=[url], model="null", prompts=["one", "two"], **{**chosen, **changes}))


async def test_so_many_at_once_are_answered_and_timed() -> None:
    got = await outcome(NullUpstream)
    assert got.requests > 4
    assert got.failures == {}
    assert got.tokens == OUTPUT_TOKENS * got.requests
    assert 0 < got.ms["p50"] <= got.ms["p99"]


async def test_a_request_goes_to_the_server_with_the_fewest_under_way() -> None:
    counted = {"busy": 0, "idle": 0}

    class Busy(NullUpstream):
        """Holds every answer back until the end."""

        def data_received(self, data: bytes) -> None:
            counted["busy"] += 1
            asyncio.get_running_loop().call_later(0.4, super().data_received, data)

    class Idle(NullUpstream):
        def data_received(self, data: bytes) -> None:
            counted["idle"] += 1
            super().data_received(data)

    async with serving(Busy) as busy, serving(Idle) as idle:
        task = Task([busy, idle], "null", ["one"], ["key"], OUTPUT_TOKENS, seconds=0.3, at_once=3)
        got = await run(task)
    assert got.failures == {}
    assert counted["busy"] <= 3
    assert counted["idle"] > 10


async def test_arrivals_come_at_their_rate() -> None:
    got = await outcome(NullUpstream, rate=100.0, seconds=0.5)
    assert got.requests == 50
    assert set(got.late_ms) == {"p50", "p95", "p99"}


async def test_every_key_is_used_once() -> None:
    got = await outcome(NullUpstream, keys=[f"key-{n}" for n in range(10)], every_key=True, seconds=30)
    assert got.requests == 10


async def test_streams_are_read_to_their_end() -> None:
    got = await outcome(NullUpstream, stream=True, max_tokens=STREAM_TOKENS, at_once=2)
    assert got.failures == {}
    assert got.events == got.tokens == STREAM_TOKENS * got.requests > 0


async def test_what_is_wrong_is_no_answer() -> None:
    refused = await outcome(Refusing, every_key=True)
    assert (refused.requests, list(refused.failures)) == (0, ['429 "too_many"}}'])
    short = await outcome(CutShort, stream=True, every_key=True)
    assert short.requests == 0
    assert all(reason.startswith("the stream broke off") for reason in short.failures)
    stingy = await outcome(Stingy, every_key=True)
    assert stingy.failures == {"not as many tokens as requested": 1}


def test_a_core_is_as_busy_as_what_runs_on_it() -> None:
    core = min(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        busy = BusyCores(Cores(frozenset({core}), frozenset(before)))
        until = time.process_time() + 0.3
        while time.process_time() < until:
            pass
        shares = busy.shares()
    finally:
        os.sched_setaffinity(0, before)
    assert shares["measured"] > 0.9, "it had nothing else to do than this"
    assert 0 < shares["others"] <= 1


@pytest.mark.parametrize(
    ("num_cores", "num_measured", "each"),
    [
        (1, 1, [{0}]),
        (2, 1, [{0}]),
        (2, 4, [{0}, {0}, {0}, {0}]),
        (4, 1, [{0, 1}]),
        (8, 4, [{0}, {1}, {2}, {3}]),
        (16, 1, [{0, 1}]),
        (16, 4, [{0, 1}, {2, 3}, {4, 5}, {6, 7}]),
    ],
)
def test_measured_processes_have_cores_that_nothing_else_runs_on(
    monkeypatch: pytest.MonkeyPatch, num_cores: int, num_measured: int, each: list[set[int]]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(num_cores)))
    cores = Cores.shared_out(num_measured)
    assert [cores.of_measured(number) for number in range(num_measured)] == each
    assert cores.measured | cores.others == set(range(num_cores))
    assert num_cores == 1 or not cores.measured & cores.others
