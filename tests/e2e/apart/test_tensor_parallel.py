"""`up --tensor-parallel 2`: kill -9 of a rank under load loses and doubles no token, and service returns."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from tests.e2e.stack import Stack, descendants, eventually, is_running
from tests.e2e.streams import Crowd, Stream, read_stream

NUM_STREAMS = 16
MAX_TOKENS = 160


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("up") / "data", "--tensor-parallel", "2", "--quantization", "none")
    try:
        stack.start()
        yield stack
    finally:
        stack.finish()


async def test_a_killed_rank_ends_the_engine_and_service_returns(divided: Stack) -> None:
    stack = divided
    await _one_good_answer(stack)
    await asyncio.to_thread(stack.wait_until_metered)
    rows_before = stack.ledger()
    engine = stack.pid_of("engine")
    assert engine is not None
    [rank] = descendants(engine)
    async with stack.client() as client:
        crowd = Crowd(client, stack.models, NUM_STREAMS, MAX_TOKENS)
        await crowd.all_generating()
        os.kill(rank, signal.SIGKILL)
        streams = await crowd.ended()
    assert all(stream.error is not None for stream in streams)
    await asyncio.to_thread(stack.wait_until_replaced, "engine", engine)
    eventually(lambda: not is_running(rank), 5, "the end of the rank")
    await asyncio.to_thread(stack.wait_until_ready)
    await asyncio.to_thread(stack.wait_until_metered)
    assert "rank 1 of 2 ended with signal 9" in stack.output

    rows = {id_: row for id_, row in stack.ledger().items() if id_ not in rows_before}
    assert rows.keys() == {stream.id for stream in streams}
    for stream in streams:
        assert stream.num_received <= rows[stream.id].completion <= MAX_TOKENS
    await _one_good_answer(stack)
    [another] = descendants(stack.pid_of("engine") or 0)
    assert another != rank


async def _one_good_answer(stack: Stack) -> None:
    async with stack.client() as client:
        stream = await read_stream(client, Stream(stack.model("add-numbers"), "8 + 5"))
        assert stream.error is None
        assert stream.finish_reason == "stop"
        assert "13" in stream.text
