"""Asking the engine: bounded, in order, again while it is busy, not at all when it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from adapters.calibration.errors import ServingRefused, ServingUnavailable
from adapters.calibration.samples import Sample
from adapters.calibration.serving import AT_ONCE, EngineScorer, ScoringAccount
from engine.client import EngineError, EngineGone, RequestRejected
from engine.protocol import AdapterRef, RejectCode, Submit, TokenLogprob, TopLogprob
from tests.adapters.calibration.engines import FinishedGeneration

ASKER = ScoringAccount(tenant="ten_one", model="sapling:mine@2", adapter_id="adp_mine", version=2)
SAMPLES = [Sample(line, [line, line + 1, line + 2, line + 3], 2) for line in range(1, 31)]
ADAPTER = AdapterRef("a" * 64, 8)


def honest(request: Submit) -> FinishedGeneration:
    """Scores that tell which sample they are of; later samples are answered first."""
    token_ids, start = request.prompt_ids, request.sampling.score_from
    scores = [
        TokenLogprob(token, -float(token), [TopLogprob(token + 1, -0.5)]) for token in token_ids[start:]
    ]
    return FinishedGeneration(scores, None, delay=0.02 / token_ids[0])


class CountingEngine:
    """Answers by a function, and knows how many it was asked at once."""

    info = stats = None

    def __init__(self, answer: Callable[[Submit], FinishedGeneration] = honest) -> None:
        self._answer = answer
        self.submits: list[Submit] = []
        self.open = self.most_open = 0

    def submit(self, request: Submit) -> Any:
        self.submits.append(request)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        generation = self._answer(request)
        return _Counted(generation, self)


class _Counted:
    def __init__(self, generation: FinishedGeneration, engine: CountingEngine) -> None:
        self._generation, self._engine = generation, engine

    @property
    def scores(self) -> list[TokenLogprob]:
        return self._generation.scores

    def __aiter__(self) -> _Counted:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._generation.__anext__()
        finally:
            self._engine.open -= 1


def served(engine: CountingEngine, **options: Any) -> EngineScorer:
    return EngineScorer(engine, ASKER, **options)


async def test_scores_come_in_the_order_of_samples_and_few_at_a_time() -> None:
    engine = CountingEngine()
    found = await served(engine).scores(SAMPLES, ADAPTER)
    assert [scores.log_probs[0] for scores in found] == [-float(sample.token_ids[2]) for sample in SAMPLES]
    assert all(
        scores.likeliest[0] == sample.token_ids[2] + 1 for scores, sample in zip(found, SAMPLES, strict=True)
    )
    assert 1 < engine.most_open <= AT_ONCE
    assert {submit.adapter for submit in engine.submits} == {ADAPTER}
    assert engine.submits[0].labels["endpoint"] == "calibration"
    assert await served(engine).scores([], None) == []


@pytest.mark.parametrize("code", ["overloaded", "adapter_loading", "draining"])
async def test_a_busy_engine_is_asked_again(code: RejectCode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.calibration.serving.FIRST_PAUSE", 0.001)
    faults: list[EngineError] = [RequestRejected(code, "not now"), EngineGone("restarting")] * 10

    def sometimes(request: Submit) -> FinishedGeneration:
        return FinishedGeneration([], faults.pop()) if faults else honest(request)

    engine = CountingEngine(sometimes)
    found = await served(engine).scores(SAMPLES, None)
    assert [scores.log_probs[0] for scores in found] == [-float(sample.token_ids[2]) for sample in SAMPLES]
    assert len(engine.submits) == len(SAMPLES) + 20
    assert len({submit.request_id for submit in engine.submits}) == len(SAMPLES) + 20, "each under its own id"


async def test_an_engine_that_stays_away_ends_it_after_a_while() -> None:
    engine = CountingEngine(lambda request: FinishedGeneration([], EngineGone("no engine")))
    with pytest.raises(ServingUnavailable, match=r"no answer within 0\.3 s: no engine"):
        await served(engine, patience=0.3).scores(SAMPLES, None)
    assert engine.open == 0


@pytest.mark.parametrize("code", ["adapter_unavailable", "invalid", "context_length_exceeded"])
async def test_a_refusal_is_final(code: RejectCode) -> None:
    engine = CountingEngine(lambda request: FinishedGeneration([], RequestRejected(code, "never")))
    with pytest.raises(ServingRefused, match="never") as refusal:
        await served(engine).scores(SAMPLES, ADAPTER)
    assert refusal.value.code == code
    assert len(engine.submits) < len(SAMPLES), "the rest is not even asked"


async def test_scores_of_something_else_are_not_taken() -> None:
    def short(request: Submit) -> FinishedGeneration:
        generation = honest(request)
        generation._found.pop()
        return generation

    with pytest.raises(ServingRefused, match="1 scores came back for 2 tokens"):
        await served(CountingEngine(short)).scores(SAMPLES, None)


async def test_a_cancelled_calibration_asks_nothing_more() -> None:
    engine = CountingEngine(lambda request: FinishedGeneration([], None, delay=60))
    running = asyncio.create_task(served(engine).scores(SAMPLES, None))
    await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert engine.open == 0
    assert len(engine.submits) == AT_ONCE
