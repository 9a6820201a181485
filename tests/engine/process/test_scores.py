"""Scored prompts through a real engine process: what the client holds at the end, and what is billed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine.client import RequestRejected
from engine.protocol import PriorityClass, Usage
from tests.engine.process.conftest import Connect
from tests.engine.process.engines import (
    EngineProcess,
    engine_process,
    journal_events,
    read,
    submission,
    tokens_of,
    until,
)


async def test_scores_are_complete_when_the_request_ends_and_its_bill_is_one_line(
    engine: EngineProcess, connect: Connect, redis_url: str
) -> None:
    client = await connect(engine)
    prompt_ids = list(range(5000))  # three steps
    sampling = {"max_tokens": 0, "prompt_logprobs": 2, "score_from": 3}
    generation = client.submit(submission("r1", 0, prompt_ids=prompt_ids, sampling=sampling))
    (chunk,) = await read(generation)
    assert (chunk.token_ids, chunk.finish_reason) == ([], "length")
    assert [score.token_id for score in generation.scores] == prompt_ids[3:]
    assert all(score.logprob < 0 and len(score.top) == 2 for score in generation.scores)
    assert generation.usage == Usage(5000, 0, 0)
    (event,) = journal_events(redis_url)
    assert (event.usage, event.finish_reason) == (Usage(5000, 0, 0), "length")


async def test_scores_are_there_before_the_first_token(engine: EngineProcess, connect: Connect) -> None:
    client = await connect(engine)
    sampling = {"prompt_logprobs": 0, "temperature": 1.0}
    generation = client.submit(submission("r1", 4, prompt_ids=[5] * 4000, n=2, sampling=sampling))
    first = await anext(generation)
    assert tokens_of(first, 0) + tokens_of(first, 1)
    assert len(generation.scores) == 3999
    await read(generation)
    assert len(generation.scores) == 3999


async def test_an_abort_in_the_prompt_leaves_nothing_behind(
    engine: EngineProcess, connect: Connect, redis_url: str
) -> None:
    client = await connect(engine)
    asked = [
        client.submit(
            submission(
                f"r{number}",
                0,
                prompt_ids=[number] * 8000,
                priority=PriorityClass.FLEX,
                sampling={"max_tokens": 0, "prompt_logprobs": 1},
            )
        )
        for number in range(16)
    ]
    await until(lambda: any(generation.scores for generation in asked))
    for generation in asked[::2]:
        generation.abort()
    answers = await asyncio.gather(*(read(generation) for generation in asked))
    for number, (generation, chunks) in enumerate(zip(asked, answers, strict=True)):
        reasons = [chunk.finish_reason for chunk in chunks]
        assert reasons == ["length"] or (number % 2 == 0 and reasons == ["abort"])
        assert (len(generation.scores) == 7999) == (reasons == ["length"])
    assert any(chunks[0].finish_reason == "abort" for chunks in answers)
    events = journal_events(redis_url)
    assert sorted(event.request_id for event in events) == sorted(f"r{number}" for number in range(16))
    await until(lambda: client.stats is not None and client.stats.running == client.stats.blocks_used == 0)


async def test_what_cannot_be_scored_is_refused_by_name(engine: EngineProcess, connect: Connect) -> None:
    client = await connect(engine)
    for field, sampling in (
        ("prompt_logprobs", {"prompt_logprobs": 21}),
        ("score_from", {"prompt_logprobs": 1, "score_from": 4}),
        ("max_tokens", {"max_tokens": 0}),
    ):
        with pytest.raises(RequestRejected, match=f"^{field}") as refusal:
            await read(client.submit(submission("r1", 4, sampling=sampling)))
        assert refusal.value.code == "invalid"


async def test_settings_that_have_moved_end_the_engine_with_their_new_names(
    folder: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("QUANTIZATION", "NUM_BLOCKS", "KV_BYTES", "NUM_SLOTS", "THREADS")
    for name in names:
        monkeypatch.setenv(f"ROOTSTOCK_ENGINE_{name}", "1")
    for process in engine_process(folder, redis_url):
        process.start()
        assert await asyncio.to_thread(process.wait, 30) == 1
        for name in names:
            assert f"set ROOTSTOCK_DEVICE_{name} instead of ROOTSTOCK_ENGINE_{name}" in process.read_log()
