"""The sampling kernels, interpreted, against the reference."""

import pytest
import torch

from kernels import sampling
from kernels.sampling import cases, reference

KINDS: list[cases.Truncation | None] = [None] * 6 + list(cases.TRUNCATIONS)
"""Positions 1 to 3 fail; 4 and 5 are greedy too."""
FEW_KINDS = [
    *KINDS[:7],
    cases.Truncation(top_k=40, top_p=0.9),
    cases.Truncation(top_p=0.9),
    cases.Truncation(temperature=2.5, top_p=0.999),
    cases.Truncation(temperature=5.0, top_k=16_500, top_p=0.5),
]
"""Where a vocabulary is large: the last two find their threshold by passes over the row."""
NUM_ROWS = 30
PADDED = (0, 5)


def both(
    logits: torch.Tensor,
    kinds: list[cases.Truncation | None],
    times: int = 1,
    masks: sampling.TokenMasks | None = None,
    **promises: bool,
) -> tuple[sampling.Drawn, sampling.Drawn]:
    asked, found = cases.sampling_inputs(kinds, "cpu", num_rows=NUM_ROWS)
    asked.rows_S[list(PADDED)] = NUM_ROWS
    _, expected = cases.sampling_inputs(kinds, "cpu", num_rows=NUM_ROWS)
    scratch = sampling.Scratch(len(kinds), logits.shape[1], torch.device("cpu"))
    for tensor in (scratch.best_SB, scratch.largest_S, scratch.bottom_S, scratch.weights_SB, scratch.list_SL):
        tensor.fill_(torch.nan)
    scratch.limit_S.fill_(torch.nan)
    scratch.masses_SB.fill_(-(1 << 60))
    for _ in range(times):  # the second time over what the first has left
        sampling.sample(logits, asked, found, scratch, masks=masks, **promises)
    reference.sample_reference(logits, asked, expected, masks)
    assert not scratch.tickets_S.any()
    assert not scratch.counts_S.any()
    return found, expected


@pytest.mark.parametrize("case", cases.CASES, ids=str)
def test_draws_are_the_reference_s(case):
    kinds = FEW_KINDS if case.vocab_size > 10_000 else KINDS
    logits = case.logits(len(kinds))
    found, expected = both(logits, kinds, times=2 if case.vocab_size < 100 else 1)
    for name in ("ids_S", "finite_S", "next_ids_R"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert found.ids_S[list(PADDED)].tolist() == [-7, -7], "padding is left alone"
    assert found.next_ids_R[-1] == -7
    assert found.finite_S[[1, 2, 3, 4]].tolist() == [0, 0, 0, 1]
    assert found.ids_S[[1, 2, 3, 4]].tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("case", cases.CASES, ids=str)
def test_draws_under_masks_are_the_reference_s(case):
    kinds = FEW_KINDS if case.vocab_size > 10_000 else KINDS
    logits = case.logits(len(kinds))
    masks = cases.token_masks(len(kinds), case.vocab_size, "cpu")
    found, expected = both(logits, kinds, times=2 if case.vocab_size < 100 else 1, masks=masks)
    for name in ("ids_S", "finite_S", "next_ids_R"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert found.finite_S[[1, 2, 3]].tolist() == [0, 0, 0], "a mask does not hide what has failed"
    allowed = reference.unpack(masks.bits_MW, case.vocab_size)
    held = [
        s for s in range(len(kinds)) if masks.masks_S[s] >= 0 and s not in PADDED and found.finite_S[s] == 1
    ]
    assert len(held) >= 3
    assert all(allowed[masks.masks_S[s], found.ids_S[s]] for s in held)


def test_a_mask_that_allows_every_token_changes_nothing():
    logits = cases.CASES[2].logits(len(KINDS))
    everything = torch.full((1, -(-cases.CASES[2].vocab_size // 32)), -1, dtype=torch.int32)
    masks = sampling.TokenMasks(everything, torch.zeros(len(KINDS), dtype=torch.int32))
    masked, _ = both(logits, KINDS, masks=masks)
    free, _ = both(logits, KINDS)
    assert torch.equal(masked.ids_S, free.ids_S)
    assert torch.equal(masked.finite_S, free.finite_S)


def test_without_draws_everybody_is_greedy():
    logits = cases.CASES[1].logits(len(KINDS))
    found, _ = both(logits, KINDS, draws=False)
    assert found.ids_S[10:].tolist() == logits[10:].argmax(-1).tolist()


def test_without_truncation_rows_that_ask_for_none_draw_alike():
    logits = cases.CASES[1].logits(len(KINDS))
    found, expected = both(logits, KINDS, truncates=False)
    plain = [
        s for s, kind in enumerate(KINDS) if kind and not kind.top_k and kind.top_p == 1 and s not in PADDED
    ]
    assert len(plain) >= 4
    assert torch.equal(found.ids_S[plain], expected.ids_S[plain])


def test_uniforms_are_the_same_bits():
    seeds = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), 987654321] * 50)
    positions = torch.arange(len(seeds)) * 7919
    assert torch.equal(sampling.uniform(seeds, positions), reference.uniform(seeds, positions))


@pytest.mark.parametrize("top_k", [1, 7, 40])
def test_the_ends_of_the_uniform_give_the_first_and_the_last_token_kept(top_k):
    logits = cases.logits(3, 3_000)
    kept = logits.topk(top_k).indices
    for end, expected in ((2.0**-53, kept.amin(1)), (1 - 2.0**-53, kept.amax(1)), (1.0, kept.amax(1))):
        uniforms = torch.full((3,), end, dtype=torch.float64)
        ones = torch.ones(3)
        found = sampling.draw(logits, ones, torch.full((3,), top_k), ones, torch.zeros(3), uniforms)
        assert torch.equal(found, expected)
