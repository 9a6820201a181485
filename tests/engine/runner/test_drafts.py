"""With drafts or without: the same tokens, scores and stops, from a real model and at every parameter."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from engine.core import EngineCore
from engine.lora.artifact import PackedAdapter, artifact_path
from engine.lora.draft_adapters import DraftAdapter, DraftAdapterChoice
from engine.lora.manifest import ModuleShape, lay_out
from engine.model.loading import load_model
from engine.model.model import Model
from engine.protocol import AdapterRef, SamplingParams, Submit
from tests.adapters.peft_files import tiny_config
from tests.engine.plain.guesses import GuessingDrafter
from tests.engine.runner.bases import VOCAB_SIZE, Adapter, write_adapters, write_base
from tests.engine.runner.rig import knowing, make_core, run
from tests.engine.runner.test_equivalence import submits
from tests.support.arithmetic import arithmetic_threads
from tests.support.examples import examples


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    with arithmetic_threads(1):
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Path, dict[str, Adapter]]:
    path = tmp_path_factory.mktemp("base")
    write_base(path / "base")
    adapters = write_adapters(path / "base", path / "adapters")
    return load_model(path / "base"), path / "adapters" / "packed", adapters


def test_answers_are_those_without_drafts_whatever_the_engine_is_short_of(
    base: tuple[Model, Path, dict[str, Adapter]],
) -> None:
    model, artifacts, adapters = base
    requests = submits(adapters, 12, seed=1)
    without = run(make_core(model, artifacts), requests)

    def check(skill: float, every: int = 0, **options: Any) -> EngineCore:
        drafter = knowing(without, skill, vocab_size=VOCAB_SIZE)
        core = make_core(model, artifacts, drafter=drafter, **{"max_rows": 40, **options})
        found = run(core, requests, every=every)
        assert found.answers == without.answers, "tokens, log-probabilities and reasons"
        assert drafter.num_accepted > 0
        assert drafter.num_accepted < drafter.num_drafts or skill == 1
        return core

    check(1.0)
    check(0.6)
    check(0.8, every=2, max_batch_tokens=40)
    assert check(0.8, num_blocks=9).stats.preemptions > 0
    assert check(0.8, every=2, num_slots=2).stats.adapter_evictions > 0
    core = check(0.8)
    again = run(core, requests)
    assert again.answers == without.answers
    assert core.stats.cached_tokens > 0


# Distributions ----------------------------------------------------------------------------------------

NUM_TOKENS = 6
LENGTH = 3
CHAIN = torch.randn(NUM_TOKENS, NUM_TOKENS, generator=torch.Generator().manual_seed(5)) * 1.2


class Chain:
    """The next token depends on the last one alone."""

    config = tiny_config(vocab_size=NUM_TOKENS, max_position_embeddings=64)
    device, dtype, group = torch.device("cpu"), torch.float32, None

    def forward(self, input_ids_T, positions_T, attention, kv, lora=None):
        return input_ids_T.float()[:, None]

    def logits(self, hidden_SH):
        return CHAIN[hidden_SH[:, 0].long()]


def weights(logits: np.ndarray, params: SamplingParams, output: list[int]) -> np.ndarray:
    """The probabilities of the next token, by the parameters' documentation."""
    logits = logits.astype(np.float64).copy()
    for token_id, bias in params.logit_bias.items():
        logits[token_id] += bias
    counts = np.bincount(output, minlength=NUM_TOKENS)
    seen = (counts > 0) | (np.arange(NUM_TOKENS) == 1)  # the prompt
    factor = np.where(logits > 0, 1 / params.repetition_penalty, params.repetition_penalty)
    logits = np.where(seen, logits * factor, logits)
    logits -= params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
    if len(output) < params.min_tokens:
        logits[list(params.stop_token_ids)] = -np.inf
    found = np.exp((logits - logits.max()) / params.temperature)
    order = np.argsort(-found)
    if params.top_k:
        found[order[params.top_k :]] = 0
    if params.top_p < 1:
        share = np.cumsum(found[order]) / found.sum()
        found[order[1:][share[:-1] >= params.top_p]] = 0
    found[found < params.min_p * found.max()] = 0
    return found / found.sum()


def joint(params: SamplingParams, length: int = LENGTH) -> dict[tuple[int, ...], float]:
    found = {}
    for tokens in itertools.product(range(NUM_TOKENS), repeat=length):
        chance, output = 1.0, [1]
        for place, token_id in enumerate(tokens):
            chance *= weights(CHAIN[output[-1]].numpy(), params, list(tokens[:place]))[token_id]
            output.append(token_id)
        if chance:
            found[tokens] = chance
    return found


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.6},
        {"top_k": 3},
        {"top_p": 0.7},
        {"min_p": 0.2},
        {"logit_bias": {0: 2.0, 3: -1.0}},
        {"presence_penalty": 0.8, "frequency_penalty": 0.5},
        {"repetition_penalty": 1.7, "temperature": 1.3, "top_k": 5, "top_p": 0.95},
        {"min_tokens": 3, "stop_token_ids": (2,)},
    ],
    ids=str,
)
def test_with_drafts_tokens_have_the_distribution_that_was_asked_for(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    params = SamplingParams(LENGTH, **{"temperature": 1.0, "ignore_eos": True, **fields})
    random = Random(2)
    # Wrong half of the time, so that most draws come after a draft was refused or taken by chance.
    drafter = GuessingDrafter(
        lambda request: [random.randrange(NUM_TOKENS) for _ in range(LENGTH + 1)],
        random,
        vocab_size=NUM_TOKENS,
    )
    core = make_core(Chain(), tmp_path, max_rows=512, num_blocks=600, drafter=drafter)  # type: ignore[arg-type]
    num_requests = examples(24)
    requests = [
        Submit(
            f"r{number}", "t", [1], SamplingParams(**{**_fields(params), "seed": 1000 * number}), None, n=100
        )
        for number in range(num_requests)
    ]
    # One after the other: rows that could be waiting requests' are not drafted for.
    found = [answer for request in requests for answer in run(core, [request]).answers.values()]
    counts = Counter(tuple(answer.token_ids) for answer in found)
    expected = joint(params)
    assert drafter.num_accepted > num_requests
    assert counts.keys() <= expected.keys(), "a token that cannot be drawn"
    statistic, cells = chi_squared(counts, expected, 100 * num_requests)
    # Mean `cells` and variance 2 `cells`: five deviations are less than one in a million.
    assert statistic < cells + 5 * (2 * cells) ** 0.5 + 10, (statistic, cells)


@pytest.mark.parametrize(
    "fields", [{}, {"presence_penalty": 0.8, "frequency_penalty": 0.5, "top_k": 5}], ids=str
)
def test_with_a_draft_adapter_too(fields: dict[str, Any], tmp_path: Path) -> None:
    """The last three tokens of five: they may have been guessed in a placeholder's place."""
    params = SamplingParams(5, **{"temperature": 1.0, "ignore_eos": True, **fields})
    drafter = GuessingDrafter(lambda _: [], Random(4), vocab_size=NUM_TOKENS, most=0, ahead=2)
    layer = {"q_proj": ModuleShape(2, *reversed(Chain.config.linear_shapes["q_proj"]), 1.0)}
    manifest = lay_out([layer] * Chain.config.num_layers, "b" * 64, "float32")
    packed = PackedAdapter(manifest, np.zeros(manifest.num_elements, np.float32))
    packed.write(artifact_path(tmp_path, packed.digest))
    choice = DraftAdapterChoice(DraftAdapter(AdapterRef(packed.digest, 2), 3, 2))
    core = make_core(
        Chain(),  # type: ignore[arg-type]
        tmp_path,
        max_rows=700,
        max_batch_tokens=800,
        num_blocks=900,
        drafter=drafter,
        draft_adapters=choice,
    )
    num_requests = examples(24)
    counts: Counter[tuple[int, ...]] = Counter()
    for number in range(num_requests):
        one = SamplingParams(**{**_fields(params), "seed": 1000 * number})
        found = run(core, [Submit(f"r{number}", "t", [1], one, None, n=100)]).answers.values()
        counts.update(tuple(answer.token_ids[2:]) for answer in found)
    assert drafter.num_guesses_drafted > drafter.num_guesses_accepted > num_requests
    expected: Counter[tuple[int, ...]] = Counter()
    for tokens, chance in joint(params, 5).items():
        expected[tokens[2:]] += chance  # type: ignore[assignment]
    statistic, cells = chi_squared(counts, expected, 100 * num_requests)  # type: ignore[arg-type]
    assert statistic < cells + 5 * (2 * cells) ** 0.5 + 10, (statistic, cells)


def _fields(params: SamplingParams) -> dict[str, Any]:
    return {name: getattr(params, name) for name in params.__struct_fields__}


def chi_squared(
    counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float], total: int
) -> tuple[float, int]:
    """The statistic, and how many cells it is summed over; rare ones are one cell."""
    rare = [tokens for tokens, chance in expected.items() if chance * total < 8]
    cells = [([tokens], chance) for tokens, chance in expected.items() if chance * total >= 8]
    if rare:
        cells.append((rare, sum(expected[tokens] for tokens in rare)))
    differences = [
        (sum(counts[tokens] for tokens in group) - chance * total) ** 2 / (chance * total)
        for group, chance in cells
    ]
    return sum(differences), len(cells)


def test_the_test_of_distributions_notices_a_wrong_one() -> None:
    expected = joint(SamplingParams(LENGTH, temperature=1.0))
    other = joint(SamplingParams(LENGTH, temperature=0.7))
    drawn = Random(1).choices(list(other), list(other.values()), k=2400)
    statistic, cells = chi_squared(Counter(drawn), expected, 2400)
    assert statistic > cells + 5 * (2 * cells) ** 0.5 + 10
