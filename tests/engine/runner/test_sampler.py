"""Each sampling parameter does what it says, to its own row alone, and costs nothing where it is not asked
for."""

import dataclasses
import math

import msgspec
import numpy as np
import pytest
import torch

from engine.device import cpu_sampler as sampler_module
from engine.device.cpu_sampler import Sampler
from engine.protocol import SamplingParams
from kernels.sampling import cases

VOCAB = 50
GREEDY_FACTOR = SamplingParams(64, temperature=0.0)


def make(*params: SamplingParams, eos_ids=(2,), prompt=(1,), output=(), seed: int = 11) -> Sampler:
    sampler = Sampler(8, VOCAB, eos_ids)
    for row, requests in enumerate(params):
        sampler.admit(row, requests, seed + row, list(prompt), list(output))
    return sampler


def draw(sampler: Sampler, logits: torch.Tensor, lens=None, rows=None):
    rows = np.arange(len(logits)) if rows is None else np.asarray(rows)
    lens = np.zeros(len(rows), np.int64) if lens is None else np.asarray(lens)
    return sampler.sample(logits, rows, lens)


def with_params(base: SamplingParams = GREEDY_FACTOR, **changes) -> SamplingParams:
    return msgspec.structs.replace(base, **changes)


def test_plain_greedy_rows_cost_one_argmax(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a step of plain greedy rows needs nothing else")

    for op in ("draw", "uniform", "penalize", "logprobs"):
        monkeypatch.setattr(sampler_module.ops, op, refuse)
    logits = cases.logits(4, VOCAB)
    sampled = draw(make(*[GREEDY_FACTOR] * 4), logits)
    assert sampled.token_ids.tolist() == logits.argmax(-1).tolist()
    assert not sampled.failed
    assert not sampled.logprobs


def test_vocabulary_sized_state_is_kept_only_for_rows_with_penalties():
    drawn = with_params(temperature=0.7, top_p=0.9, logit_bias={3: 1.0}, min_tokens=4, logprobs=3)
    sampler = make(GREEDY_FACTOR, drawn)
    assert sampler._counts._output.numel() == 0
    sampler.admit(2, with_params(presence_penalty=0.1), 0, [1], [])
    held = sampler._counts._output.shape[0]
    for _ in range(20):
        sampler.release(2)
        sampler.admit(2, with_params(presence_penalty=0.1), 0, [1], [])
    assert sampler._counts._output.shape[0] == held


def test_logit_bias_is_added_to_its_own_row():
    logits = torch.zeros(3, VOCAB)
    logits[:, 7] = 1.0
    sampled = draw(
        make(GREEDY_FACTOR, with_params(logit_bias={9: 1.5}), with_params(logit_bias={7: -2, 4: 0.5})), logits
    )
    assert sampled.token_ids.tolist() == [7, 9, 4]
    assert torch.equal(logits[:, 9], torch.zeros(3)), "the caller's logits stay as they were"


def test_penalties_follow_what_has_been_drawn():
    logits = torch.zeros(4, VOCAB)
    logits[:, 5], logits[:, 6], logits[:, 8] = 3.0, 2.5, 2.1
    sampler = make(
        GREEDY_FACTOR,
        with_params(presence_penalty=1.0),
        with_params(frequency_penalty=0.4),
        with_params(repetition_penalty=1.3),
        prompt=[6],
    )
    steps = [draw(sampler, logits, [n] * 4).token_ids.tolist() for n in range(4)]
    assert [step[0] for step in steps] == [5, 5, 5, 5]
    # 5 once drawn stands at 2, 6 and then 8 follow, and then 5 leads again with all three cut by one.
    assert [step[1] for step in steps] == [5, 6, 8, 5]
    # 5 stands at 3.0, 2.6, then at 2.2 below 6, which then stands at 2.1.
    assert [step[2] for step in steps] == [5, 5, 6, 5]
    # The prompt's 6 is cut from the start (2.5 / 1.3); 5 goes down to 2.31, above 8.
    assert [step[3] for step in steps] == [5, 5, 5, 5]


def test_repetition_counts_the_prompt():
    logits = torch.zeros(1, VOCAB)
    logits[0, 6], logits[0, 5] = 3.0, 2.9
    assert draw(make(with_params(repetition_penalty=1.1), prompt=[6]), logits).token_ids.tolist() == [5]
    assert draw(make(with_params(presence_penalty=2.0), prompt=[6]), logits).token_ids.tolist() == [6]


def test_counts_after_a_preemption_are_those_of_an_undisturbed_row():
    params = SamplingParams(
        64, temperature=0.9, frequency_penalty=0.7, repetition_penalty=1.4, presence_penalty=0.2
    )
    undisturbed = make(params, prompt=[3, 4])
    tokens = []
    for step in range(30):
        logits = cases.logits(1, VOCAB, seed=step)
        tokens.append(int(draw(undisturbed, logits, [step]).token_ids[0]))
        resumed = make(params, prompt=[3, 4], output=tokens[:-1])
        assert int(draw(resumed, logits, [step]).token_ids[0]) == tokens[-1]
    assert len(set(tokens)) > 5


def test_min_tokens_forbids_eos_and_stop_ids_until_then():
    logits = torch.zeros(4, VOCAB)
    logits[:, 2], logits[:, 9], logits[:, 30] = 3.0, 2.0, 1.0
    requests = [
        with_params(min_tokens=2),
        with_params(min_tokens=2, stop_token_ids=(9,)),
        with_params(min_tokens=2, stop_token_ids=(9,), ignore_eos=True),
        with_params(stop_token_ids=(9,)),
    ]
    sampler = make(*requests)
    assert [draw(sampler, logits, [n] * 4).token_ids.tolist() for n in (0, 1, 2)] == [
        [9, 30, 2, 2],
        [9, 30, 2, 2],
        [2, 2, 2, 2],
    ]


def test_min_tokens_holds_for_drawn_rows_too():
    logits = torch.zeros(1, VOCAB)
    logits[0, 2] = 20.0
    sampler = make(SamplingParams(64, temperature=1.0, min_tokens=50))
    drawn = [int(draw(sampler, logits, [n]).token_ids[0]) for n in range(60)]
    assert 2 not in drawn[:50]
    assert set(drawn[50:]) == {2}


def test_a_row_draws_the_same_in_any_company():
    rng = np.random.default_rng(0)
    kinds = [
        GREEDY_FACTOR,
        SamplingParams(64, temperature=0.7),
        SamplingParams(64, top_k=5),
        SamplingParams(64, top_p=0.6),
        SamplingParams(64, min_p=0.2, repetition_penalty=1.2),
        with_params(logit_bias={4: 2.0}, frequency_penalty=0.3),
        SamplingParams(64, temperature=1.4, min_tokens=9, top_k=20, top_p=0.95),
        with_params(logprobs=2),
    ]
    together, alone = make(*kinds), make(*kinds)
    for step in range(25):
        logits = cases.logits(8, VOCAB, seed=step)
        rows = rng.permutation(8)[: rng.integers(1, 9)]
        found = draw(together, logits[rows], [step] * len(rows), rows).token_ids.tolist()
        single = [int(draw(alone, logits[r : r + 1], [step], [r]).token_ids[0]) for r in rows]
        assert found == single


def test_seed_and_position_decide_the_draw():
    params = SamplingParams(64)
    logits = torch.zeros(1, VOCAB)

    def tokens(seed: int) -> list[int]:
        sampler = Sampler(8, VOCAB, (2,))
        sampler.admit(3, params, seed, [1], [])
        return [int(draw(sampler, logits, [n], [3]).token_ids[0]) for n in range(12)]

    assert tokens(5) == tokens(5)
    assert len({tuple(tokens(seed)) for seed in (0, 1, 2, -1, 2**63, 2**64 - 2, 10**30)}) == 7
    assert tokens(2**64 + 5) == tokens(5)


def test_a_row_that_is_not_finite_fails_alone():
    kinds = [
        GREEDY_FACTOR,
        SamplingParams(64, temperature=0.8),
        with_params(frequency_penalty=1.0),
        with_params(logprobs=1),
    ]
    for bad in range(4):
        for value in (math.nan, math.inf):
            sampler, undisturbed = make(*kinds), make(*kinds)
            logits = cases.logits(4, VOCAB)
            expected = draw(undisturbed, logits).token_ids.tolist()
            logits[bad, 17] = value
            sampled = draw(sampler, logits)
            assert sampled.failed == [bad]
            found = sampled.token_ids.tolist()
            assert found[:bad] + found[bad + 1 :] == expected[:bad] + expected[bad + 1 :]
            assert set(sampled.logprobs) == {3} - {bad}


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 1e-300},
        {"temperature": 1e300},
        {"temperature": 1e-6, "top_p": 1e-300},
        {"temperature": 1.0, "top_k": 2**63 - 1},
        {"temperature": 1.0, "top_k": 2**64 - 1, "min_p": 1.0},
        {"min_tokens": 2**64 - 1},
        {"logit_bias": {3: 1e308, 4: -1e308}},
        {"presence_penalty": 1e308, "frequency_penalty": -1e308},
        {"repetition_penalty": 1e308},
        {"repetition_penalty": 1e-308},
        {"logprobs": 10**6},
    ],
    ids=str,
)
def test_numbers_beyond_all_measure_break_no_step(changes):
    sampler = make(with_params(**changes), GREEDY_FACTOR, prompt=[3], output=[4, 4])
    logits = cases.logits(2, VOCAB)
    for step in range(3):
        sampled = draw(sampler, logits, [2 + step] * 2)
        assert sampled.failed == []
        assert sampled.token_ids[1] == logits[1].argmax()
        assert 0 <= sampled.token_ids[0] < VOCAB


def test_logprobs_are_of_the_unmodified_distribution():
    logits = cases.logits(3, VOCAB)
    expected = torch.log_softmax(logits, -1)
    sampler = make(
        with_params(logprobs=0),
        SamplingParams(64, temperature=0.3, top_k=4, logit_bias={1: 9.0}, logprobs=4),
        GREEDY_FACTOR,
    )
    sampled = draw(sampler, logits)
    assert set(sampled.logprobs) == {0, 1}
    for place, entry in sampled.logprobs.items():
        assert entry.token_id == sampled.token_ids[place]
        assert entry.logprob == pytest.approx(float(expected[place, entry.token_id]), abs=1e-5)
    assert sampled.logprobs[0].top == []
    top = sampled.logprobs[1].top
    assert [entry.token_id for entry in top] == expected[1].topk(4).indices.tolist()
    assert [entry.logprob for entry in top] == pytest.approx(expected[1].topk(4).values.tolist(), abs=1e-5)


def test_a_row_released_and_taken_again_keeps_nothing():
    sampler = make(
        SamplingParams(64, logit_bias={5: 50.0}, repetition_penalty=2.0, min_tokens=9, logprobs=1), seed=1
    )
    draw(sampler, cases.logits(1, VOCAB))
    sampler.release(0)
    sampler.admit(0, GREEDY_FACTOR, 0, [1], [])
    logits = cases.logits(1, VOCAB)
    sampled = draw(sampler, logits)
    assert dataclasses.astuple(sampled)[1:] == ({}, [])
    assert sampled.token_ids.tolist() == logits.argmax(-1).tolist()
