"""A whole engine without its process, on a real model: what the equivalence tests turn the knobs of."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from engine.core import EngineCore
from engine.device.cpu_runner import ModelRunner
from engine.environment import EngineEnvironment
from engine.grammar.admission import GrammarAdmission
from engine.kv_cache import BlockPool
from engine.lora.artifact import PackedAdapter, artifact_path
from engine.lora.draft_adapters import DraftAdapterChoice
from engine.lora.pool import AdapterPool
from engine.lora.slots import SlotTable
from engine.model.model import Model
from engine.protocol import AdapterRef, Submit, TokenLogprob, UsageEvent
from engine.request import Request
from engine.scheduling.drafter import Drafter
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.validation import EngineLimits
from tests.engine.plain.guesses import GuessingDrafter


@dataclass
class Answer:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None


@dataclass
class Run:
    answers: dict[tuple[str, int], Answer]
    usage: dict[str, UsageEvent]
    core: EngineCore
    scores: dict[str, list[TokenLogprob]] = field(default_factory=dict)
    """Of prompts that asked for it."""

    def tokens(self) -> dict[tuple[str, int], list[int]]:
        return {key: answer.token_ids for key, answer in self.answers.items()}


def knowing(without: Run, skill: float, *, vocab_size: int, seed: int = 1, **options: int) -> GuessingDrafter:
    """Guesses from the answers of a run without drafts, right as often as `skill` says."""

    def answer(request: Request) -> list[int]:
        return without.answers[request.request_id, request.index].token_ids

    return GuessingDrafter(answer, Random(seed), vocab_size=vocab_size, skill=skill, **options)


def make_core(
    model: Model,
    artifact_dir: Path,
    *,
    num_blocks: int = 128,
    block_size: int = 16,
    max_rows: int = 16,
    max_batch_tokens: int = 512,
    num_slots: int = 8,
    context_length: int = 128,
    max_flex_tokens: int | None = None,
    token_bytes: list[bytes] | None = None,
    grammars: GrammarAdmission | None = None,
    drafter: Drafter | None = None,
    draft_adapters: DraftAdapterChoice | None = None,
) -> EngineCore:
    """Adapters load at once, on the caller's thread: no test waits."""
    pool = AdapterPool(model.config, num_slots, model.device, model.dtype)
    core: EngineCore

    def start_load(slot: int, ref: AdapterRef) -> None:
        pool.load(slot, PackedAdapter.read(artifact_path(artifact_dir, ref.digest), ref.digest))
        core.adapter_loaded(slot, ref.digest)

    scheduler = Scheduler(
        EngineLimits(
            context_length,
            model.config.vocab_size,
            max_batch_tokens,
            max_rows,
            max_flex_tokens=max_flex_tokens,
        ),
        BlockPool(num_blocks, block_size),
        SlotTable(num_slots, start_load),
        model.config.eos_ids,
        token_bytes or [b"x"] * model.config.vocab_size,
        EngineEnvironment("engine-0", "test", draw_seed=lambda: 7),
        drafter=drafter,
    )
    if draft_adapters is not None:
        scheduler.draft_adapters.choice = draft_adapters
    runner = ModelRunner(model, pool, num_blocks, block_size, max_rows, context_length)
    core = EngineCore(scheduler, runner, grammars=grammars)
    return core


def run(core: EngineCore, submits: Iterable[Submit], *, every: int = 0) -> Run:
    """Run to the end; with `every`, a request is submitted only that many steps after the one before."""
    waiting = list(submits)
    result = Run({}, {}, core)
    steps = 0
    while waiting or core.has_work or core.grammars:
        if not waiting and not core.has_work:
            time.sleep(0.001)  # a grammar is being compiled
            continue
        while waiting and (not every or steps % every == 0 or not core.has_work):
            assert core.submit(waiting.pop(0)) is None
            if every:
                break
        outputs = core.step()
        steps += 1
        assert steps < 10_000, "no progress"
        assert not outputs.rejected, outputs.rejected
        for found in outputs.scores:
            scores = result.scores.setdefault(found.request_id, [])
            assert found.request_id not in {name for name, _ in result.answers}, "scores after a chunk"
            scores += found.logprobs
        for chunk in outputs.chunks:
            answer = result.answers.setdefault((chunk.request_id, chunk.index), Answer())
            answer.token_ids += chunk.token_ids
            answer.logprobs += chunk.logprobs or []
            answer.finish_reason = chunk.finish_reason
        result.usage |= {finished.request_id: event for finished, event in outputs.finished}
    core.check_integrity()
    return result


def assert_alike(there: Run, here: Run) -> None:
    """The same tokens and reasons; log-probabilities but for their last digits, which depend on how many rows
    a product has: when grammars are compiled and adapters loaded decides who runs together.
    """
    assert there.tokens() == here.tokens()
    for key, answer in here.answers.items():
        found = there.answers[key]
        assert found.finish_reason == answer.finish_reason
        assert [entry.logprob for entry in found.logprobs] == pytest.approx(
            [entry.logprob for entry in answer.logprobs], abs=1e-4
        )
    assert there.scores.keys() == here.scores.keys()
    for key, scores in here.scores.items():
        assert [entry.token_id for entry in there.scores[key]] == [entry.token_id for entry in scores]
        assert [entry.logprob for entry in there.scores[key]] == pytest.approx(
            [entry.logprob for entry in scores], abs=1e-4
        )
