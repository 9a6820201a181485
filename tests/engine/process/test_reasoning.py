"""Reasoning tokens in the journal: of requests that end, and of those that a killed engine leaves."""

from __future__ import annotations

import pytest

from engine.client import RequestRejected
from engine.protocol import Reasoning
from tests.engine.process.conftest import Connect
from tests.engine.process.engines import (
    EngineProcess,
    billed,
    journal_events,
    read,
    submission,
    until,
)

OPEN = Reasoning("<think>", "</think>", (1,), (2,), {1: "<think>", 2: "</think>"}, is_open=True)
"""A null engine never draws the end."""


async def test_they_are_journaled_with_the_rest(
    engine: EngineProcess, connect: Connect, redis_url: str
) -> None:
    client = await connect(engine)
    generation = client.submit(submission("r", 30, reasoning=OPEN, n=2))
    await read(generation)
    assert generation.usage is not None
    assert (generation.usage.completion_tokens, generation.usage.reasoning_tokens) == (60, 60)
    assert billed(journal_events(redis_url))["r"].usage == generation.usage


async def test_a_budget_needs_masks(engine: EngineProcess, connect: Connect) -> None:
    client = await connect(engine)
    bounded = Reasoning(OPEN.start, OPEN.end, OPEN.start_ids, OPEN.end_ids, OPEN.special, True, 5)
    with pytest.raises(RequestRejected, match=r"reasoning\.budget is not supported"):
        await read(client.submit(submission("r", 30, reasoning=bounded)))


async def test_a_killed_engine_leaves_the_count_of_its_last_checkpoint(
    engine: EngineProcess, connect: Connect, redis_url: str
) -> None:
    client = await connect(engine)
    client.submit(submission("r", 5000, reasoning=OPEN))
    await until(lambda: bool(journal_events(redis_url)))
    engine.kill()
    engine.start()
    await until(lambda: any(event.finish_reason == "error" for event in journal_events(redis_url)))
    (last,) = (event for event in journal_events(redis_url) if event.finish_reason == "error")
    assert 256 <= last.usage.reasoning_tokens <= last.usage.completion_tokens
