"""kill -9 of the private Redis and PostgreSQL under load: streams go on, books balance, both come back."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.stack import Stack, eventually
from tests.e2e.streams import Crowd

NUM_STREAMS = 16
MAX_TOKENS = 100


@pytest.mark.parametrize("store", ["Redis", "PostgreSQL"])
async def test_kill_of_a_store_stops_no_stream_and_loses_no_token(stack: Stack, store: str) -> None:
    generated = stack.counter("rootstock_engine_completion_tokens_total")
    rows_before = stack.ledger()
    async with stack.client() as client:
        crowd = Crowd(client, stack.models, NUM_STREAMS, MAX_TOKENS)
        await crowd.all_generating()
        dead = stack.kill_store(store)
        streams = await crowd.ended()
    for stream in streams:
        assert stream.error is None, stream.error
        assert stream.num_received == stream.usage.completion_tokens == MAX_TOKENS
    await asyncio.to_thread(
        eventually, lambda: stack.pid_of_store(store) not in (None, dead), 30, f"a new {store}"
    )
    await asyncio.to_thread(stack.wait_until_ready)
    await asyncio.to_thread(stack.wait_until_metered, 60)

    rows = {id_: row for id_, row in stack.ledger().items() if id_ not in rows_before}
    assert rows.keys() == {stream.id for stream in streams}
    for stream in streams:
        row, usage = rows[stream.id], stream.usage
        assert (row.prompt, row.completion) == (usage.prompt_tokens, usage.completion_tokens)
    counted = stack.counter("rootstock_engine_completion_tokens_total") - generated
    assert sum(row.completion for row in rows.values()) == counted
    assert f"{store} died, restarting it" in stack.output
    restarts = f'rootstock_process_restarts_total{{process="{store.lower()}"}}'
    await asyncio.to_thread(eventually, lambda: stack.counter(restarts) == 1, 30, "a restart in /metrics")
