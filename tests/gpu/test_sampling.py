"""Sampling on the device: the same numbers, the same tokens, and never one that was cut."""

import math

import pytest
import torch

from kernels import sampling
from kernels.sampling import cases
from tests.gpu.closeness import assert_near

pytestmark = pytest.mark.gpu

EDGE = 1e-6
"""Share of the distribution by which two devices may disagree where a token's interval ends."""


def draw(
    logits: torch.Tensor, asked: list[cases.Truncation], uniform: torch.Tensor, device: torch.device | str
) -> torch.Tensor:
    return sampling.draw(
        logits.to(device),
        torch.tensor([a.temperature for a in asked], device=device),
        torch.tensor([a.top_k for a in asked], device=device),
        torch.tensor([a.top_p for a in asked], device=device),
        torch.tensor([a.min_p for a in asked], device=device),
        uniform.to(device),
    ).cpu()


def test_uniforms_are_the_same_bits(device: torch.device) -> None:
    seeds = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), 987654321] * 500)
    positions = torch.arange(len(seeds)) * 7919
    got = sampling.uniform(seeds.to(device), positions.to(device))
    assert torch.equal(got.cpu(), sampling.uniform(seeds, positions))


def test_greedy_takes_the_lowest_of_equals_and_flags_what_is_not_finite(device: torch.device) -> None:
    logits = cases.logits(40, 128_256)
    logits[0, [5, 70_000, 128_255]] = 50.0
    logits[1] = 0.0
    logits[2, 77], logits[3, 9], logits[4] = math.nan, math.inf, -math.inf
    logits[5, 1:] = -math.inf
    ids, finite = (tensor.cpu() for tensor in sampling.greedy(logits.to(device)))
    expected_ids, expected_finite = sampling.greedy(logits)
    assert torch.equal(finite, expected_finite)
    assert torch.equal(ids[finite], expected_ids[finite])
    assert ids[[0, 1, 5]].tolist() == [5, 0, 0]


@pytest.mark.parametrize("asked", [*cases.TRUNCATIONS, None], ids=str)
@pytest.mark.parametrize("vocab_size", [600, 50_000])
def test_draws(asked: cases.Truncation | None, vocab_size: int, device: torch.device) -> None:
    """Equal wherever a hair more or less of the uniform is the same token; `None`: all kinds at once."""
    num = 600 if vocab_size == 600 else 60
    truncations = [asked or cases.TRUNCATIONS[row % len(cases.TRUNCATIONS)] for row in range(num)]
    logits = cases.logits(num, vocab_size)
    uniform = sampling.uniform(torch.full((num,), 5), torch.arange(num)).clamp(EDGE, 1 - EDGE)
    low = draw(logits, truncations, uniform - EDGE, "cpu")
    sure = low == draw(logits, truncations, uniform + EDGE, "cpu")
    assert sure.float().mean() > 0.9
    assert torch.equal(draw(logits, truncations, uniform, device)[sure], low[sure])


@pytest.mark.parametrize("top_k", [1, 7, 40])
@pytest.mark.parametrize("vocab_size", [50, 5_000, 128_256])
def test_the_ends_of_the_uniform_give_the_first_and_the_last_token_kept(
    vocab_size: int, top_k: int, device: torch.device
) -> None:
    """Sums made in parallel round differently along a row; what was cut must not be drawn for it."""
    logits = cases.logits(64, vocab_size)
    kept = logits.topk(top_k).indices
    truncations = [cases.Truncation(top_k=top_k)] * 64
    for end, expected in ((2.0**-53, kept.amin(1)), (1 - 2.0**-53, kept.amax(1)), (1.0, kept.amax(1))):
        found = draw(logits, truncations, torch.full((64,), end, dtype=torch.float64), device)
        assert torch.equal(found, expected)


def test_only_what_was_kept_is_drawn(device: torch.device) -> None:
    """At uniforms on the very edges of the tokens' intervals."""
    (row,) = cases.logits(1, 20_000)
    kept, order = row.topk(50).indices.sort().values, torch.arange(50)
    edges = torch.softmax(row[kept].double(), 0).cumsum(0)[:-1]
    up, down = (torch.nextafter(edges, torch.full_like(edges, end)) for end in (1, 0))
    uniform = torch.cat([up, edges, down])
    logits = row.expand(len(uniform), -1).contiguous()
    found = draw(logits, [cases.Truncation(top_k=50)] * len(uniform), uniform, device)
    assert torch.isin(found, kept).all()
    places = (found[:, None] == kept).float().argmax(1).view(3, -1)
    assert ((places == order[:-1]) | (places == order[1:])).all()


@pytest.mark.parametrize(("vocab_size", "top_k"), [(300, 100), (2_000, 500), (50_000, 12_000)])
def test_no_cut_token_is_drawn_where_the_running_sum_stands_still(
    vocab_size: int, top_k: int, device: torch.device
) -> None:
    """Uniforms that are the running sum's own values beside the tokens that were cut."""
    num = 4_000
    (row,) = cases.logits(1, vocab_size, spread=1.0)
    kept = row >= row.topk(top_k).values[-1]
    weights = torch.exp(row - row.max()).masked_fill(~kept, 0.0).to(device)
    shares = weights.double().cumsum(0).cpu()
    after_cut = (~kept).nonzero().squeeze(-1)
    places = after_cut[torch.linspace(0, len(after_cut) - 1, num - 1).long()]
    uniform = torch.cat([shares[places - 1] / shares[-1], torch.ones(1).double()])
    logits = row.expand(num, -1).contiguous()
    found = draw(logits, [cases.Truncation(top_k=top_k)] * num, uniform, device)
    assert kept[found].all()


def test_penalties_and_logprobs(device: torch.device) -> None:
    logits = cases.logits(6, 5_000)
    generator = torch.Generator().manual_seed(1)
    counts = torch.randint(-20, 4, (6, 5_000), generator=generator).clamp_(min=0).int()
    in_prompt = torch.rand(6, 5_000, generator=generator) < 0.01
    penalties = torch.rand(3, 6, generator=generator) + torch.tensor([[-0.5], [-0.5], [0.5]])
    arguments = (logits, counts, in_prompt, *penalties)
    expected = sampling.penalize(*arguments)
    got = sampling.penalize(*(argument.to(device) for argument in arguments))
    assert_near(got, expected, 1e-6)

    ids = logits.argmin(-1)
    found = sampling.logprobs(logits.to(device), ids.to(device), 5)
    chosen, top, top_ids = sampling.logprobs(logits, ids, 5)
    assert_near(found[0], chosen, 1e-6)
    assert_near(found[1], top, 1e-6)
    assert torch.equal(found[2].cpu(), top_ids)
