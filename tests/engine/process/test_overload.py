"""An engine process with too much to do: who is refused, when to ask again, and that it costs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.client import RequestRejected
from engine.protocol import PriorityClass
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

PRIORITY, DEFAULT, FLEX = PriorityClass


@pytest.fixture
def small(folder: Path, redis_url: str) -> Iterator[EngineProcess]:
    """One row, and four places in the queue."""
    for process in engine_process(folder, redis_url, max_rows=1, queue_limit=4):
        process.start()
        yield process


async def test_a_full_queue_refuses_the_lowest_and_says_when_to_ask_again(
    small: EngineProcess, connect: Connect, redis_url: str
) -> None:
    client = await connect(small)
    running = client.submit(submission("running", 150))
    first = await anext(aiter(running))
    flex = [client.submit(submission(f"flex{number}", 2, priority=FLEX)) for number in range(3)]
    urgent = [client.submit(submission(f"urgent{number}", 2, priority=PRIORITY)) for number in range(4)]
    for generation in flex:
        with pytest.raises(RequestRejected) as refused:
            await read(generation)
        assert refused.value.code == "overloaded"
        assert refused.value.retry_after is not None
        assert refused.value.retry_after >= 1.0
    answers = await asyncio.gather(*(read(generation) for generation in urgent))
    assert [len(tokens_of(chunks)) for chunks in answers] == [2] * 4
    # It had begun: it made way for the urgent ones, and its stream goes on.
    assert len(tokens_of(first + await read(running))) == 150
    assert billed(journal_events(redis_url)).keys() == {"running", "urgent0", "urgent1", "urgent2", "urgent3"}


async def test_what_dashboards_need_is_in_the_stats(small: EngineProcess, connect: Connect) -> None:
    client = await connect(small)
    default = client.submit(submission("default", 150))
    await anext(aiter(default))
    await read(client.submit(submission("urgent", 5, priority=PRIORITY)))
    refused = [client.submit(submission(f"flex{number}", 2, priority=FLEX)) for number in range(3)]
    await read(default)
    await asyncio.gather(*(read(generation) for generation in refused), return_exceptions=True)
    await until(lambda: client.stats is not None and client.stats.completion_tokens >= 155)
    stats = client.stats
    assert stats is not None
    assert stats.rows_total == 1
    assert (
        stats.running_by_class.keys() == stats.predicted_wait.keys() == {str(name) for name in PriorityClass}
    )
    assert stats.preempted == {"default": 1}
    assert stats.shed == {"flex": 1}, "two places of the four are for it"
    # Three tokens of each prompt, and again what the preempted one knew.
    assert stats.prefill_tokens >= 6
    assert stats.decode_tokens >= 150
