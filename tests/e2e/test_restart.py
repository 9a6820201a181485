"""Ending and starting again on the same directory: in good order, and not."""

from __future__ import annotations

import asyncio
import os
import signal
import stat

from tests.e2e.stack import Stack, descendants, eventually, is_running
from tests.e2e.streams import Crowd, Stream, read_stream

KEPT = ("api_key", "admin_api_key", "other_api_key", "email", "password", "base", "adapters")


async def test_sigterm_finishes_streams_meters_them_and_exits_0(stack: Stack) -> None:
    told = stack.demo
    rows_before = stack.ledger()
    async with stack.client() as client:
        crowd = Crowd(client, stack.models, 8, max_tokens=120)
        await crowd.all_generating()
        below = descendants(stack.process.pid)
        stack.process.send_signal(signal.SIGTERM)
        streams = await crowd.ended()
    for stream in streams:
        assert stream.error is None
        assert stream.num_received == 120
    assert await asyncio.to_thread(stack.process.wait, 60) == 0, stack.output
    assert not [pid for pid in below if is_running(pid)]
    assert "all usage is in the ledger" in stack.output
    assert not (stack.data / "serving.json").exists()

    await asyncio.to_thread(stack.start)
    assert {name: stack.demo[name] for name in KEPT} == {name: told[name] for name in KEPT}
    assert stat.S_IMODE((stack.data / "demo.json").stat().st_mode) == 0o600
    rows = stack.ledger()
    assert rows.keys() - rows_before.keys() == {stream.id for stream in streams}
    for stream in streams:
        assert rows[stream.id].completion == stream.usage.completion_tokens == 120
    async with stack.client() as client:
        assert {model.id async for model in client.models.list()} >= set(stack.models)
        again = await read_stream(client, Stream(stack.model("add-numbers"), "8 + 5"))
        assert again.model == stack.model("add-numbers")
        assert again.finish_reason == "stop"


async def test_nothing_outlives_a_killed_up_and_the_next_one_serves(stack: Stack) -> None:
    rows_before = stack.ledger()
    async with stack.client() as client:
        crowd = Crowd(client, stack.models, 8, max_tokens=120)
        await crowd.all_generating()
        below = descendants(stack.process.pid)
        os.kill(stack.process.pid, signal.SIGKILL)
        streams = await crowd.ended()
    stack.process.wait()
    assert all(stream.error is not None for stream in streams)
    eventually(lambda: not [pid for pid in below if is_running(pid)], 20, "the end of every process")

    await asyncio.to_thread(stack.start)
    await asyncio.to_thread(stack.wait_until_metered)
    rows = stack.ledger()
    assert rows.keys() - rows_before.keys() == {stream.id for stream in streams}
    for stream in streams:
        assert stream.num_received <= rows[stream.id].completion <= 120
