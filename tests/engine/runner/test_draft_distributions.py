"""Verified drafts over a million draws: what counts has the distribution that single steps would have had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from engine.device.batch_state import Draws
from engine.device.cpu_sampler import Sampler
from engine.protocol import SamplingParams
from kernels.sampling import NO_MASK, TokenMasks
from tests.engine.runner.test_drafts import CHAIN, NUM_TOKENS, chi_squared, weights

NUM_DRAFTS = 3
NUM_DRAWS = NUM_DRAFTS + 1
NUM_ROWS = 64
OUTPUT = [4, 2]
"""Generated before, after the prompt [1]."""
ALLOWED = {0: [1, 2, 5], 1: [3], 2: [0, 1, 3, 4], 3: [0], 4: [4, 5], 5: [0, 2, 3]}
"""A grammar: the tokens that may follow each. It forces 3 after 1, and 0 after 3."""
PARAMETERS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.2},
    "penalties": {"presence_penalty": 0.8, "frequency_penalty": 0.7},
    "repetition": {"repetition_penalty": 1.7},
    "bias": {"logit_bias": {0: 2.0, 3: -1.0}},
    "grammar": {},
    "all": {"temperature": 1.3, "top_k": 5, "top_p": 0.95, "min_p": 0.01, "frequency_penalty": 0.4},
}
KINDS = ("followed before", "likeliest", "unrelated", "guessed ahead", "forced")


def chances(params: SamplingParams, ahead: list[int], is_held: bool) -> np.ndarray:
    """The target: the probabilities of the token after the output and some drafts."""
    output = OUTPUT + ahead
    logits = CHAIN[output[-1]].numpy().astype(np.float64).copy()
    if is_held:
        logits[[token for token in range(NUM_TOKENS) if token not in ALLOWED[output[-1]]]] = -np.inf
    return weights(logits, params, output)


def guesses(kind: str, params: SamplingParams, is_held: bool) -> list[list[int]]:
    """Sequences of drafts of a kind."""
    random = Random(kind)
    if kind == "forced":
        return [[1, 3, 0], [3, 0, 1]]  # two of three follow from the one before
    if kind == "guessed ahead":
        # A draft adapter's: the likeliest of another distribution, each without knowing the one before.
        places = torch.randn(NUM_DRAFTS, NUM_TOKENS, generator=torch.Generator().manual_seed(9))
        return [(CHAIN[OUTPUT[-1]] + scale * places).argmax(dim=1).tolist() for scale in (0.5, 2.0)]
    if kind == "unrelated":
        return [random.choices(range(NUM_TOKENS), k=NUM_DRAFTS) for _ in range(6)]
    found = []
    for _ in range(1 if kind == "likeliest" else 6):
        drafts: list[int] = []
        while len(drafts) < NUM_DRAFTS:
            target = chances(params, drafts, is_held)
            drafts.append(
                int(target.argmax()) if kind == "likeliest" else random.choices(range(NUM_TOKENS), target)[0]
            )
        found.append(drafts)
    return found


def expected(params: SamplingParams, drafts: list[int], is_held: bool) -> dict[tuple[int, ...], float]:
    """The probability of each outcome of one verification: the drafts that were drawn, and one token more."""
    found, reached = {}, 1.0
    for num in range(NUM_DRAWS):
        ahead = drafts[:num]
        target = chances(params, ahead, is_held)
        for token in range(NUM_TOKENS):
            if num == NUM_DRAFTS or token != drafts[num]:
                found[*ahead, token] = reached * float(target[token])
        if num < NUM_DRAFTS:
            reached *= float(target[drafts[num]])
        if not reached:
            break  # nothing behind that draft counts
    return {outcome: chance for outcome, chance in found.items() if chance}


def masks_after(drafts: list[int]) -> list[int]:
    """By draw, the mask that the grammar's filler makes: nothing behind a draft that it does not allow."""
    bits, last = [], OUTPUT[-1]
    for token in [*drafts, 0]:
        bits.append(sum(1 << allowed for allowed in ALLOWED[last]) if last >= 0 else 0)
        last = token if last >= 0 and token in ALLOWED[last] else -1
    return bits


def verify(
    params: SamplingParams, drafts: list[int], is_held: bool, num_trials: int, broken: str = ""
) -> Counter[tuple[int, ...]]:
    """The outcomes of verifications: the sampler draws after the last token and after each draft."""
    sampler = Sampler(NUM_ROWS, NUM_TOKENS, ())
    for row in range(NUM_ROWS):
        sampler.admit(row, params, 1000 + row, [1], OUTPUT)
    place = np.tile(np.arange(NUM_DRAWS), num_trials)
    trial = np.arange(num_trials).repeat(NUM_DRAWS)
    rows = trial % NUM_ROWS
    ahead = [drafts[:num] for num in range(NUM_DRAWS)]
    if broken == "drafts are not counted":
        ahead = [[] for _ in ahead]
    draws = Draws(rows, place, np.ones(len(rows), bool), ahead * num_trials)
    # Every trial has a random number for each of its draws: rows have seeds, their trials positions.
    positions = len(OUTPUT) + NUM_DRAWS * (trial // NUM_ROWS) + place
    if broken == "one random number for all":
        positions -= place
    logits = CHAIN[[OUTPUT[-1], *drafts]].repeat(num_trials, 1)
    if broken == "one distribution for all":
        logits = CHAIN[[OUTPUT[-1]] * NUM_DRAWS].repeat(num_trials, 1)
    masks = None
    if is_held:
        bits = masks_after(drafts)
        if broken == "one mask for all":
            bits = [bits[0]] * NUM_DRAWS
        masks = TokenMasks(
            torch.tensor(bits, dtype=torch.int32)[:, None], torch.from_numpy(place.astype(np.int32))
        )
        assert NO_MASK not in place
    drawn = sampler.sample(logits, rows, positions, masks, draws).token_ids.reshape(num_trials, NUM_DRAWS)
    num_accepted = (drawn[:, :NUM_DRAFTS] == drafts).cumprod(axis=1).sum(axis=1)
    if broken == "a draw too many counts":
        num_accepted = np.minimum(num_accepted + 1, NUM_DRAFTS)
    if broken == "every draft is accepted":
        num_accepted[:] = NUM_DRAFTS
        drawn[:, :NUM_DRAFTS] = drafts
    found, counts = np.unique(
        np.where(np.arange(NUM_DRAWS) <= num_accepted[:, None], drawn, -1), axis=0, return_counts=True
    )
    outcomes = [tuple(token for token in outcome if token >= 0) for outcome in found.tolist()]
    return Counter(dict(zip(outcomes, counts.tolist(), strict=True)))


def is_right(params: SamplingParams, kind: str, is_held: bool, num_trials: int, broken: str = "") -> bool:
    statistic, num_cells = 0.0, 0
    sequences = guesses(kind, params, is_held)
    for drafts in sequences:
        share = num_trials // len(sequences)
        counts = verify(params, drafts, is_held, share, broken)
        target = expected(params, drafts, is_held)
        if not counts.keys() <= target.keys():
            return False  # what cannot be drawn
        found = chi_squared(counts, target, share)
        statistic, num_cells = statistic + found[0], num_cells + found[1]
    # Mean `num_cells` and variance 2 `num_cells`: five deviations are less than one in a million.
    return statistic < num_cells + 5 * (2 * num_cells) ** 0.5 + 10


def params_of(name: str) -> SamplingParams:
    return SamplingParams(99, **{"temperature": 1.0, "ignore_eos": True, **PARAMETERS[name]})


def cases() -> Iterator[tuple[str, str]]:
    for kind in KINDS:
        for name in PARAMETERS:
            if kind != "forced" or name == "grammar":
                yield kind, name
    yield "forced", "all"


NUM_TRIALS = 10_000


def test_a_million_draws_were_made() -> None:
    assert NUM_TRIALS * NUM_DRAWS * len(list(cases())) > 1_000_000


@pytest.mark.parametrize(("kind", "name"), cases())
def test_what_counts_has_the_targets_distribution(kind: str, name: str) -> None:
    is_held = name == "grammar" or kind == "forced"
    assert is_right(params_of(name), kind, is_held, NUM_TRIALS)


@pytest.mark.parametrize(
    ("broken", "kind", "name"),
    [
        ("drafts are not counted", "likeliest", "penalties"),
        ("drafts are not counted", "unrelated", "repetition"),
        ("one random number for all", "followed before", "temperature"),
        ("one distribution for all", "unrelated", "top_k"),
        ("one mask for all", "followed before", "grammar"),
        ("a draw too many counts", "likeliest", "bias"),
        ("every draft is accepted", "likeliest", "top_p"),
    ],
)
def test_a_verification_that_is_wrong_is_noticed(broken: str, kind: str, name: str) -> None:
    assert not is_right(params_of(name), kind, name == "grammar", NUM_TRIALS, broken)
