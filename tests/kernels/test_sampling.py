"""The sampling ops against transformers' processors, against plain Python, and against the distribution they
promise."""

import math
import struct
import warnings

import numpy as np
import pytest
import torch

from kernels import sampling
from kernels.sampling import cases

NUM_DRAWS = 20_000
CHI2_999 = {4: 18.47, 7: 24.32, 15: 37.70, 31: 61.10, 63: 103.44}
"""0.999 quantiles of the chi-square distribution by degrees of freedom."""


@pytest.fixture(scope="module")
def processors():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers.generation import logits_process
    return logits_process


def rows(value: float, num: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((num,), value, dtype=dtype)


def draw(logits: torch.Tensor, asked: list[cases.Truncation], uniform: torch.Tensor) -> torch.Tensor:
    return sampling.draw(
        logits,
        torch.tensor([a.temperature for a in asked]),
        torch.tensor([a.top_k for a in asked]),
        torch.tensor([a.top_p for a in asked]),
        torch.tensor([a.min_p for a in asked]),
        uniform,
    )


def expected_probabilities(processors, row_V: torch.Tensor, asked: cases.Truncation) -> torch.Tensor:
    """transformers' distribution, in its order: temperature, top-k, top-p, min-p."""
    steps = [processors.TemperatureLogitsWarper(asked.temperature)]
    if asked.top_k:
        steps.append(processors.TopKLogitsWarper(asked.top_k))
    if asked.top_p < 1:
        steps.append(processors.TopPLogitsWarper(asked.top_p))
    if asked.min_p:
        steps.append(processors.MinPLogitsWarper(asked.min_p))
    scores = row_V[None].double()
    for step in steps:
        scores = step(None, scores)
    return torch.softmax(scores, dim=-1)[0]


@pytest.mark.parametrize("asked", cases.TRUNCATIONS, ids=str)
@pytest.mark.parametrize("spread", [3.0, 0.1])
def test_a_draw_inverts_the_distribution_of_transformers(processors, asked, spread):
    """Just inside both ends of a token's interval of the CDF that token is drawn; tokens cut have no
    interval."""
    logits = cases.logits(1, 600, spread=spread)
    probabilities = expected_probabilities(processors, logits[0], asked)
    cdf = probabilities.cumsum(0)
    kept = (probabilities > 1e-5).nonzero().squeeze(-1)
    assert len(kept) >= 1
    margin = 0.02 * probabilities[kept]
    uniform = torch.cat([cdf[kept] - probabilities[kept] + margin, cdf[kept] - margin])
    found = draw(logits.expand(len(uniform), -1).contiguous(), [asked] * len(uniform), uniform)
    assert found.tolist() == torch.cat([kept, kept]).tolist()


def test_rows_with_every_kind_of_truncation_do_not_disturb_each_other():
    logits = cases.logits(len(cases.TRUNCATIONS), 500)
    uniform = sampling.uniform(torch.arange(len(logits)), torch.zeros(len(logits), dtype=torch.int64))
    together = draw(logits, cases.TRUNCATIONS, uniform)
    alone = [draw(logits[i : i + 1], [a], uniform[i : i + 1]) for i, a in enumerate(cases.TRUNCATIONS)]
    assert together.tolist() == torch.cat(alone).tolist()


def test_the_ends_of_the_uniform_give_the_first_and_the_last_token_kept():
    logits = cases.logits(1, 50).expand(3, -1).contiguous()
    kept = set(logits[0].topk(7).indices.tolist())
    ends = torch.tensor([2.0**-53, 1 - 2.0**-53, 1.0], dtype=torch.float64)
    found = draw(logits, [cases.Truncation(top_k=7)] * 3, ends)
    assert found.tolist() == [min(kept), max(kept), max(kept)]


def test_ties_stay_or_go_together():
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 0.0]])
    u = (torch.arange(1000).double() + 0.5) / 1000
    many = logits.expand(1000, -1).contiguous()
    assert set(draw(many, [cases.Truncation(top_k=2)] * 1000, u).tolist()) == {1, 2, 3}
    share = torch.softmax(logits, -1)[0]
    just_the_first_tie = float(share[1] + share[2] / 2)
    assert set(draw(many, [cases.Truncation(top_p=just_the_first_tie)] * 1000, u).tolist()) == {1, 2, 3}


@pytest.mark.parametrize(("temperature", "num"), [(1e-6, 5), (1e6, 5)])
def test_extreme_temperatures_stay_finite(temperature, num):
    logits = torch.tensor([[3.0e38, -3.0e38, 1.0, 2.0, 3.0]])
    found = draw(
        logits.expand(num, -1).contiguous(), [cases.Truncation(temperature)] * num, torch.rand(num).double()
    )
    assert ((found >= 0) & (found < 5)).all()
    if temperature < 1:
        assert found.tolist() == [0] * num


@pytest.mark.parametrize("asked", cases.TRUNCATIONS, ids=str)
def test_frequencies_follow_the_distribution(processors, asked):
    """Chi-square at 0.999, with a fixed seed, over draws at successive positions of one request."""
    logits = cases.logits(1, 64, spread=1.0, seed=3)
    probabilities = expected_probabilities(processors, logits[0], asked)
    uniform = sampling.uniform(torch.full((NUM_DRAWS,), 1234), torch.arange(NUM_DRAWS))
    found = draw(logits.expand(NUM_DRAWS, -1).contiguous(), [asked] * NUM_DRAWS, uniform)
    counts = torch.bincount(found, minlength=64).double()
    assert (counts[probabilities == 0] == 0).all()
    kept = probabilities > 0
    expected = probabilities[kept] * NUM_DRAWS
    chi2 = float(((counts[kept] - expected) ** 2 / expected).sum())
    freedom = int(kept.sum()) - 1
    bound = next(CHI2_999[f] for f in sorted(CHI2_999) if f >= freedom)
    assert chi2 <= bound


def mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return x ^ (x >> 31)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63), 987654321])
def test_the_uniform_is_the_one_written_down(seed):
    golden = 0x9E3779B97F4A7C15
    positions = [0, 1, 2, 1000, 2**31]
    expected = []
    for position in positions:
        stream = mix((seed + golden) % 2**64)
        bits = mix((stream + (position + 1) * golden) % 2**64) >> 12
        expected.append((bits + 0.5) / 2**52)
    found = sampling.uniform(torch.full((5,), seed), torch.tensor(positions))
    assert found.dtype is torch.float64
    assert [struct.pack("d", x) for x in found.tolist()] == [struct.pack("d", x) for x in expected]


def test_uniforms_are_uniform_and_streams_are_independent():
    n = 1 << 16
    streams = [sampling.uniform(torch.full((n,), seed), torch.arange(n)) for seed in (0, 1, 2)]
    streams.append(sampling.uniform(torch.arange(n), torch.zeros(n, dtype=torch.int64)))
    for stream in streams:
        assert ((stream > 0) & (stream < 1)).all()
        counts = torch.histc(stream.float(), 64, 0, 1).double()
        assert float(((counts - n / 64) ** 2 / (n / 64)).sum()) < CHI2_999[63]
    for i, one in enumerate(streams):
        for other in streams[i + 1 :]:
            for shift in (0, 1):
                pair = torch.stack([one[: n - 1], other[shift : n - 1 + shift]])
                assert abs(float(torch.corrcoef(pair)[0, 1])) < 5 / math.sqrt(n)


def test_repetition_penalty_is_that_of_transformers(processors):
    logits = cases.logits(4, 40)
    prompt, output = [3, 5, 7], [7, 11, 11]
    counts = torch.bincount(torch.tensor(output), minlength=40).int().expand(4, -1)
    in_prompt = torch.zeros(4, 40, dtype=torch.bool)
    in_prompt[:, prompt] = True
    for penalty in (1.0, 1.3, 0.5):
        found = sampling.penalize(logits, counts, in_prompt, rows(0, 4), rows(0, 4), rows(penalty, 4))
        expected = logits
        if penalty != 1.0:
            step = processors.RepetitionPenaltyLogitsProcessor(penalty)
            expected = step(torch.tensor([prompt + output] * 4), logits.clone())
        assert torch.equal(found, expected)


def test_presence_and_frequency_count_the_output_only():
    logits = cases.logits(2, 10)
    counts = torch.zeros(2, 10, dtype=torch.int32)
    counts[0, 4], counts[0, 6], counts[1, 6] = 3, 1, 2
    in_prompt = torch.ones(2, 10, dtype=torch.bool)
    found = sampling.penalize(
        logits, counts, in_prompt, torch.tensor([0.5, -1.0]), torch.tensor([0.25, 2.0]), rows(1, 2)
    )
    expected = logits.clone()
    expected[0, 4] -= 0.5 + 3 * 0.25
    expected[0, 6] -= 0.5 + 0.25
    expected[1, 6] -= -1.0 + 2 * 2.0
    torch.testing.assert_close(found, expected)


def test_penalties_apply_repetition_first():
    found = sampling.penalize(
        torch.tensor([[2.0, -2.0]]),
        torch.tensor([[1, 1]], dtype=torch.int32),
        torch.zeros(1, 2, dtype=torch.bool),
        rows(1, 1),
        rows(0.5, 1),
        rows(2, 1),
    )
    assert found.tolist() == [[2 / 2 - 1.5, -2 * 2 - 1.5]]


def test_greedy_takes_the_lowest_of_equals_and_flags_what_is_not_finite():
    logits = torch.tensor(
        [
            [0.0, 5.0, 5.0],
            [0.0, math.nan, 9.0],
            [math.inf, 1.0, 2.0],
            [-math.inf, -math.inf, -math.inf],
            [-math.inf, -3.0, -2.0],
        ]
    )
    ids, finite = sampling.greedy(logits)
    assert finite.tolist() == [True, False, False, False, True]
    assert (int(ids[0]), int(ids[4])) == (1, 2)


def test_logprobs_are_the_log_softmax():
    logits = cases.logits(3, 30)
    ids = torch.tensor([4, 9, 29])
    chosen, top, top_ids = sampling.logprobs(logits, ids, 5)
    expected = torch.log_softmax(logits.double(), -1)
    torch.testing.assert_close(chosen.double(), expected[torch.arange(3), ids], rtol=1e-5, atol=1e-5)
    assert torch.equal(top_ids, logits.topk(5, -1).indices)
    torch.testing.assert_close(top.double(), expected.gather(-1, top_ids), rtol=1e-5, atol=1e-5)
    assert sampling.logprobs(logits, ids, 0)[1].shape == (3, 0)


def test_no_op_changes_its_inputs():
    logits = cases.logits(4, 300)
    kept = logits.clone()
    draw(logits, [cases.Truncation(0.8, 5, 0.9, 0.1)] * 4, torch.rand(4).double())
    counts = torch.ones(4, 300, dtype=torch.int32)
    sampling.penalize(logits, counts, counts.bool(), rows(1, 4), rows(1, 4), rows(2, 4))
    sampling.logprobs(logits, torch.zeros(4, dtype=torch.int64), 3)
    sampling.greedy(logits)
    assert torch.equal(logits, kept)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("logits", lambda: sampling.greedy(torch.zeros(3))),
        ("logits", lambda: sampling.greedy(torch.zeros(3, 4, dtype=torch.float64))),
        ("seeds", lambda: sampling.uniform(torch.zeros(2), torch.zeros(2, dtype=torch.int64))),
        ("positions", lambda: sampling.uniform(torch.zeros(2, dtype=torch.int64), torch.zeros(2))),
        ("ids", lambda: sampling.logprobs(torch.zeros(2, 4), torch.zeros(3, dtype=torch.int64), 1)),
        ("num_top", lambda: sampling.logprobs(torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64), 5)),
        ("uniform", lambda: draw(torch.zeros(2, 4), [cases.Truncation()] * 2, torch.zeros(3))),
        ("temperature", lambda: draw(torch.zeros(2, 4), [cases.Truncation()] * 3, torch.zeros(2))),
        (
            "counts",
            lambda: sampling.penalize(
                torch.zeros(2, 4), torch.zeros(2, 3), torch.zeros(2, 4), rows(0, 2), rows(0, 2), rows(1, 2)
            ),
        ),
    ],
)
def test_wrong_shapes_and_types_are_refused_by_name(name, call):
    with pytest.raises(ValueError, match=name):
        call()


def test_signed_constants_are_the_published_ones():
    from kernels.sampling import reference

    for signed, unsigned in (
        (reference._GOLDEN, 0x9E3779B97F4A7C15),
        (reference._MIX_1, 0xBF58476D1CE4E5B9),
        (reference._MIX_2, 0x94D049BB133111EB),
    ):
        assert np.int64(signed).view(np.uint64) == unsigned
