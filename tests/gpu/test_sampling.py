"""Sampling on the device: the same numbers, the same tokens, and never one that was cut."""

import math
from dataclasses import replace

import pytest
import torch

from kernels import sampling
from kernels.sampling import cases, reference
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


# ---- whole steps

KINDS: list[cases.Truncation | None] = [None] * 6 + 3 * list(cases.TRUNCATIONS)
NUM_ROWS = 64


def sample(
    logits: torch.Tensor, kinds: list[cases.Truncation | None], scratch: sampling.Scratch | None = None
) -> sampling.Drawn:
    asked, drawn = cases.sampling_inputs(kinds, logits.device, num_rows=NUM_ROWS)
    scratch = scratch or sampling.Scratch(len(kinds), logits.shape[1], logits.device)
    sampling.sample(logits, asked, drawn, scratch)
    return drawn


@pytest.mark.parametrize(
    "case",
    [
        *cases.CASES,
        cases.Case(128_256),
        cases.Case(128_256, dtype=torch.bfloat16, strided=True),
        cases.Case(128_256, spread=0.1),
        cases.Case(262_144, spread=1.0, dtype=torch.bfloat16),
    ],
    ids=str,
)
def test_steps_are_the_reference_s(case: cases.Case, device: torch.device, poisoned: None) -> None:
    logits = case.logits(len(KINDS)).to(device)
    assert logits.is_contiguous() or case.strided
    found = sample(logits, KINDS)
    asked, expected = cases.sampling_inputs(KINDS, device, num_rows=NUM_ROWS)
    reference.sample_reference(logits, asked, expected)
    assert torch.equal(found.finite_S, expected.finite_S)
    assert torch.equal(found.next_ids_R[:NUM_ROWS].flip(0)[: len(KINDS)], found.ids_S)
    same = found.ids_S == expected.ids_S
    assert same[:6].all()
    # Between two tokens of 260 thousand the last bit of a weight may decide, which a sum's order changes.
    assert same.sum() >= len(KINDS) - 1


@pytest.mark.parametrize(
    "case",
    [*cases.CASES, cases.Case(128_256), cases.Case(128_256, dtype=torch.bfloat16, strided=True)],
    ids=str,
)
def test_steps_under_masks_are_the_reference_s(
    case: cases.Case, device: torch.device, poisoned: None
) -> None:
    logits = case.logits(len(KINDS)).to(device)
    masks = cases.token_masks(len(KINDS), case.vocab_size, device)
    asked, found = cases.sampling_inputs(KINDS, device, num_rows=NUM_ROWS)
    scratch = sampling.Scratch(len(KINDS), case.vocab_size, device)
    sampling.sample(logits, asked, found, scratch, masks=masks)
    _, expected = cases.sampling_inputs(KINDS, device, num_rows=NUM_ROWS)
    reference.sample_reference(logits, asked, expected, masks)
    assert torch.equal(found.finite_S, expected.finite_S)
    same = found.ids_S == expected.ids_S
    assert same[:6].all()
    assert same.sum() >= len(KINDS) - 1
    free = sample(logits, KINDS)
    unmasked = masks.masks_S == sampling.NO_MASK
    assert torch.equal(found.ids_S[unmasked], free.ids_S[unmasked])
    allowed = reference.unpack(masks.bits_MW, case.vocab_size)
    for position in (~unmasked & (found.finite_S > 0)).nonzero().squeeze(-1).tolist():
        assert allowed[masks.masks_S[position], found.ids_S[position]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_draws_the_same_alone_and_in_any_batch(dtype: torch.dtype, device: torch.device) -> None:
    logits = cases.Case(128_256, dtype=dtype).logits(len(KINDS)).to(device)
    asked, drawn = cases.sampling_inputs(KINDS, device, num_rows=NUM_ROWS)
    scratch = sampling.Scratch(256, logits.shape[1], device)
    sampling.sample(logits, asked, drawn, scratch)
    for position in range(0, len(KINDS), 3):
        alone = replace(
            asked,
            **{
                name: getattr(asked, name)[position : position + 1].clone()
                for name in asked.__dataclass_fields__
            },
        )
        again = replace(drawn, ids_S=drawn.ids_S.clone())
        sampling.sample(logits[position : position + 1], alone, again, scratch)
        assert torch.equal(again.ids_S, drawn.ids_S)
    many = torch.cat([logits] * 5)[:256]
    more_asked, more = cases.sampling_inputs((KINDS * 6)[:256], device, num_rows=256)
    more_asked.positions_S[: len(KINDS)] = asked.positions_S
    sampling.sample(many, more_asked, more, scratch)
    assert torch.equal(more.ids_S[: len(KINDS)], drawn.ids_S)


def test_a_captured_step_serves_every_mix(device: torch.device) -> None:
    """Parameters, padding and logits change between replays; nothing is left from one to the next."""
    size, vocab_size = len(KINDS), 128_256
    asked, drawn = cases.sampling_inputs(KINDS, device, num_rows=NUM_ROWS)
    logits = cases.logits(size, vocab_size).to(device)
    scratch = sampling.Scratch(size, vocab_size, device)
    sampling.sample(logits, asked, drawn, scratch)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sampling.sample(logits, asked, drawn, scratch)
    for step, kinds in enumerate(
        [KINDS, [None] * size, KINDS[::-1], [cases.Truncation(top_p=0.9)] * size, KINDS[6:] + KINDS[:6]]
    ):
        now, expected = cases.sampling_inputs(kinds, device, num_rows=NUM_ROWS, seed=step)
        now.rows_S[step::7] = NUM_ROWS
        for name in asked.__dataclass_fields__:
            getattr(asked, name).copy_(getattr(now, name))
        logits.copy_(cases.logits(size, vocab_size, seed=step, spread=0.5 + step))
        drawn.ids_S.fill_(-7)
        graph.replay()
        reference.sample_reference(logits, now, expected)
        assert (drawn.ids_S == expected.ids_S).sum() >= size - 1
        assert (drawn.ids_S[step::7] == -7).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_frequencies_follow_the_distribution(dtype: torch.dtype, device: torch.device) -> None:
    """Chi-square at 0.999 over draws at successive positions, from a vocabulary with 40 likely tokens."""
    vocab_size, num, likely = 50_000, 8192, 40
    row = torch.full((vocab_size,), -30.0)
    places = torch.arange(likely) * 1_234 + 7
    row[places] = torch.linspace(0, 3, likely)
    logits = row.to(device, dtype).expand(num, -1)
    for kind in (
        cases.Truncation(),
        cases.Truncation(temperature=1.5, top_p=0.8),
        cases.Truncation(top_k=20),
    ):
        asked, drawn = cases.sampling_inputs([kind] * num, device, num_rows=num)
        sampling.sample(logits, asked, drawn, sampling.Scratch(num, vocab_size, device))
        weights = torch.exp((row[places].to(dtype).double() - 3) / kind.temperature)
        shares, order = (weights / weights.sum()).sort(descending=True)
        kept = (shares.cumsum(0) - shares < kind.top_p) & (torch.arange(likely) < (kind.top_k or likely))
        probabilities = torch.zeros(likely).double()
        probabilities[order[kept]] = shares[kept] / shares[kept].sum()
        counts = (drawn.ids_S.cpu()[:, None] == places).sum(0).double()
        assert counts.sum() == num
        assert (counts[probabilities == 0] == 0).all()
        expected = probabilities[probabilities > 0] * num
        chi2 = ((counts[probabilities > 0] - expected) ** 2 / expected).sum()
        assert chi2 <= 76.0  # 0.999 quantile at 39 degrees of freedom is 72.1
