"""Drafts of rows that are held to a grammar: each draw has the mask that it would have without them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from engine.batch import Batch, StepResult
from engine.device.cpu_runner import ModelRunner
from engine.model.model import Model
from engine.request import Request
from engine.speculation.mixed_drafter import MixedDrafter
from tests.engine.grammar.sapling import grammar_core, schema, small_model, submission
from tests.engine.grammar.test_constrained import LIST, PERSON, valid
from tests.engine.plain.guesses import GuessingDrafter
from tests.engine.runner.rig import assert_alike, run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return small_model(tmp_path_factory.mktemp("small"))


@pytest.mark.parametrize("skill", [1.0, 0.7])
def test_answers_are_those_without_drafts(model: Model, tmp_path: Path, skill: float) -> None:
    requests = [
        submission(
            f"r{seed}",
            schema(PERSON) if seed % 3 else None,
            seed=seed,
            temperature=0.0 if seed == 1 else 0.9,
            max_tokens=60,
            frequency_penalty=0.4 if seed == 2 else 0.0,
            n=2,
        )
        for seed in range(6)
    ]
    requests.append(submission("short", schema(LIST), seed=3))
    without = run(grammar_core(model, tmp_path), requests)

    def answer(request: Request) -> list[int]:
        return without.answers[request.request_id, request.index].token_ids

    drafter = GuessingDrafter(answer, Random(2), vocab_size=model.config.vocab_size, skill=skill)
    found = run(grammar_core(model, tmp_path, max_rows=64, drafter=drafter), requests)
    assert found.answers == without.answers
    assert valid(found.answers["short", 0], LIST)
    assert drafter.num_accepted > 50


class Recorder(MixedDrafter):
    """Notes what became of forced tokens. Steps take a second each: drafts are free."""

    def __init__(self) -> None:
        super().__init__(lambda: float(self.num_steps))
        self.num_steps = self.num_forced = self.num_guessed = 0
        self.refused: list[tuple[int, int]] = []

    def note_step(self, num_rows: int, num_drafts: int, num_known: int) -> None:
        self.num_steps += 1
        super().note_step(num_rows, num_drafts, num_known)

    def note_verified(
        self, request: Request, num_drafts: int, num_accepted: int, guesses: Sequence[int]
    ) -> None:
        drafted = self._followed[request].drafted
        num_forced = 0 if drafted is None else min(num_drafts, drafted.num_forced)
        self.num_forced += num_forced
        self.num_guessed += max(0, num_accepted - num_forced)
        if num_accepted < num_forced:
            self.refused.append((num_forced, num_accepted))
        super().note_verified(request, num_drafts, num_accepted, guesses)


RECORD = {
    "type": "object",
    "properties": {
        "identification": {"type": "integer", "minimum": 10, "maximum": 99},
        "has_been_delivered": {"type": "boolean"},
        "destination_address": {"enum": ["warehouse in the north", "warehouse in the south"]},
    },
    "required": ["identification", "has_been_delivered", "destination_address"],
    "additionalProperties": False,
}


def test_what_a_grammar_forces_is_drafted_and_never_refused(model: Model, tmp_path: Path) -> None:
    kinds = [
        {"temperature": 0.0},
        {"temperature": 1.3, "top_k": 9},
        {"temperature": 0.8, "top_p": 0.7, "frequency_penalty": 0.6},
        {"temperature": 1.0, "min_p": 0.2, "logit_bias": {41: -4.0, 300: 2.0}, "logprobs": 1},
    ]
    requests = [
        submission(f"r{seed}", schema(RECORD), seed=seed, max_tokens=90, **kinds[seed % 4])
        for seed in range(4)
    ]
    requests.append(submission("free", None, max_tokens=60))
    without = run(grammar_core(model, tmp_path), requests)
    drafter = Recorder()
    found = run(grammar_core(model, tmp_path, max_rows=64, drafter=drafter), requests)
    assert_alike(found, without)
    assert all(valid(found.answers[f"r{seed}", 0], RECORD) for seed in range(4))
    assert not drafter.refused
    assert drafter.num_forced > 30


class OverlappedRunner:
    """Runs a step when its masks may be filled, and returns its tokens when the next one is launched."""

    depth = 1

    def __init__(self, runner: ModelRunner) -> None:
        self.counters = runner.counters
        self._runner = runner

    def launch(self, batch: Batch) -> OverlappedStep:
        return OverlappedStep(self._runner, batch)


class OverlappedStep:
    def __init__(self, runner: ModelRunner, batch: Batch) -> None:
        self._runner, self._batch = runner, batch
        self._drawn: StepResult | None = None

    def fill_masks(self) -> None:
        self._drawn = self._drawn or self._runner.execute(self._batch)

    def result(self) -> StepResult:
        self.fill_masks()
        assert self._drawn is not None
        return self._drawn


def test_forced_tokens_are_foreseen_while_steps_overlap(model: Model, tmp_path: Path) -> None:
    requests = [submission(f"r{seed}", schema(RECORD), seed=seed, max_tokens=90) for seed in range(1, 3)]
    without = run(grammar_core(model, tmp_path), requests)
    drafter = Recorder()
    core = grammar_core(model, tmp_path, max_rows=64, drafter=drafter)
    assert isinstance(core.runner, ModelRunner)
    core.runner = OverlappedRunner(core.runner)
    found = run(core, requests)
    assert found.answers == without.answers
    assert not drafter.refused
    assert drafter.num_forced > 20


def test_forced_tokens_are_drafted_beside_guesses_from_texts(model: Model, tmp_path: Path) -> None:
    requests = [submission("r", schema(RECORD), seed=1, temperature=0.0, max_tokens=90)]
    drafter = Recorder()
    core = grammar_core(model, tmp_path, max_rows=64, drafter=drafter)
    first = run(core, requests)
    num_forced, num_steps = drafter.num_forced, drafter.num_steps
    again = run(core, requests)
    assert again.answers == first.answers
    assert drafter.num_forced > num_forced > 0
    assert drafter.num_guessed > 0, "what lies between forced tokens was said before"
    assert drafter.num_steps - num_steps < num_steps
    assert not drafter.refused
