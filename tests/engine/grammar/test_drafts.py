"""Drafts of rows that are held to a grammar: each draw has the mask that it would have without them."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from engine.model.loading import load_model
from engine.model.model import Model
from engine.request import Request
from tests.engine.grammar.sapling import BASE, grammar_core, schema, submission
from tests.engine.grammar.test_constrained import LIST, PERSON, valid
from tests.engine.plain.guesses import GuessingDrafter
from tests.engine.runner.rig import run


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(BASE)


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
