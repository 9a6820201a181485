"""kill -9 of each process under load: what was generated is billed, once, and service returns by itself."""

from __future__ import annotations

import asyncio

import pytest
from openai import APIStatusError

from tests.e2e.stack import Stack
from tests.e2e.streams import Crowd, Stream, read_stream

NUM_STREAMS = 16
MAX_TOKENS = 100


async def one_good_answer(stack: Stack) -> None:
    async with stack.client() as client:
        stream = await read_stream(client, Stream(stack.model("add-numbers"), "8 + 5"))
        assert stream.error is None
        assert stream.finish_reason == "stop"


async def test_kill_of_the_api_loses_and_doubles_no_token(stack: Stack) -> None:
    generated = stack.counter("rootstock_engine_completion_tokens_total")
    rows_before = stack.ledger()
    async with stack.client() as client:
        crowd = Crowd(client, stack.models, NUM_STREAMS, MAX_TOKENS)
        await crowd.all_generating()
        dead = stack.kill("api")
        streams = await crowd.ended()
    assert all(stream.error is not None for stream in streams)
    await asyncio.to_thread(stack.wait_until_replaced, "api", dead)
    await asyncio.to_thread(stack.wait_until_ready)
    await asyncio.to_thread(stack.wait_until_metered)

    rows = {id_: row for id_, row in stack.ledger().items() if id_ not in rows_before}
    assert rows.keys() == {stream.id for stream in streams}
    for stream in streams:
        assert stream.num_received <= rows[stream.id].completion <= MAX_TOKENS
        assert rows[stream.id].finish_reason == "abort"
    # The engine lived through it: its own count is exact.
    counted = stack.counter("rootstock_engine_completion_tokens_total") - generated
    assert sum(row.completion for row in rows.values()) == counted
    await one_good_answer(stack)


async def test_kill_of_the_worker_loses_and_doubles_no_token(stack: Stack) -> None:
    generated = stack.counter("rootstock_engine_completion_tokens_total")
    rows_before = stack.ledger()
    async with stack.client() as client:
        crowd = Crowd(client, stack.models, NUM_STREAMS, MAX_TOKENS)
        await crowd.all_generating()
        dead = stack.kill("worker")
        streams = await crowd.ended()
    for stream in streams:
        assert stream.error is None
        assert stream.finish_reason == "length"
        assert stream.num_received == stream.usage.completion_tokens == MAX_TOKENS
    await asyncio.to_thread(stack.wait_until_replaced, "worker", dead)
    await asyncio.to_thread(stack.wait_until_metered)

    rows = {id_: row for id_, row in stack.ledger().items() if id_ not in rows_before}
    assert rows.keys() == {stream.id for stream in streams}
    for stream in streams:
        row, usage = rows[stream.id], stream.usage
        assert (row.prompt, row.completion) == (usage.prompt_tokens, usage.completion_tokens)
    counted = stack.counter("rootstock_engine_completion_tokens_total") - generated
    assert sum(row.completion for row in rows.values()) == counted


async def test_kill_of_the_engine_ends_streams_clearly_and_it_returns(stack: Stack) -> None:
    rows_before = stack.ledger()
    api = stack.pid_of("api")
    async with stack.client() as client:
        crowd = Crowd(client, stack.models, NUM_STREAMS, MAX_TOKENS)
        await crowd.all_generating()
        dead = stack.kill("engine")
        streams = await crowd.ended()
        for stream in streams:
            assert stream.error is not None
            assert "engine" in str(stream.error)
        with pytest.raises(APIStatusError) as refused:
            await client.chat.completions.create(
                model=stack.demo["base"], messages=[{"role": "user", "content": "Hello"}]
            )
        assert refused.value.status_code == 503
    await asyncio.to_thread(stack.wait_until_replaced, "engine", dead)
    await asyncio.to_thread(stack.wait_until_ready)
    assert stack.pid_of("api") == api, "the api should have stayed up"
    await one_good_answer(stack)
    await asyncio.to_thread(stack.wait_until_metered)

    rows = stack.ledger()
    for stream in streams:
        assert stream.num_received <= rows[stream.id].completion <= MAX_TOKENS
    assert len(rows) - len(rows_before) == NUM_STREAMS + 1
    assert "engine was killed by SIGKILL, restarting it" in stack.output
