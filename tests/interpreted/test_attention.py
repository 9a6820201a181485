"""The attention kernels under the interpreter, against one token and one head at a time in doubles."""

import numpy as np
import pytest
import torch

from kernels.attention import DeviceStep, device_plan, paged_attention
from kernels.attention.cases import AHEAD_CASES, CASES, Case, DeviceBatch, naive_attention

EXTRA = [
    Case(((1, 33), (9, 20)), 7, 1, 32),  # seven heads share one: rows that are no power of two
    Case(((1, 20), (4, 20)), 4, 2, 48),  # nor the head
]


def attend(case: Case, q: torch.Tensor, cache: torch.Tensor, step: DeviceStep) -> torch.Tensor:
    out = torch.full_like(q, float("nan"))
    paged_attention(q, cache, step, case.head_dim**-0.5, out)
    return out


@pytest.mark.parametrize("case", CASES + EXTRA, ids=str)
def test_as_the_plain_statement_and_nothing_hidden_is_read(case: Case) -> None:
    q, cache = case.inputs()
    expected = naive_attention(q, cache, case.metadata(), case.head_dim**-0.5)
    got = attend(case, q, case.poison(cache), case.device_step())
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


def test_tokens_that_fill_a_bucket_are_left_alone() -> None:
    for case in (CASES[1], CASES[4]):
        q, cache = case.inputs()
        filled = torch.cat((q, torch.full_like(q[:3], float("nan"))))
        got = attend(case, filled, case.poison(cache), case.device_step(filling=3))
        assert torch.equal(got[:-3], attend(case, q, cache, case.device_step()))
        assert got[-3:].isnan().all()


def test_split_sequences_and_their_bits_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits as short as a test can afford: 1, 2, 3 and 32 of them."""
    monkeypatch.setattr(device_plan, "SPLIT_KEYS", 64)
    case = Case(((1, 64), (1, 65), (1, 190), (1, 2048), (1, 2049)), 4, 2, 16)
    q, cache = case.inputs()
    step = case.device_step()
    got = attend(case, q, case.poison(cache), step)
    expected = naive_attention(q, cache, case.metadata(), case.head_dim**-0.5)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)
    assert not step.arrivals_SH.any()
    metadata = case.metadata()
    batch = DeviceBatch(case, 5, 5, metadata.block_tables.shape[1], "cpu")
    for seq in range(5):
        batch.set_tables(np.array([2]), metadata.block_tables[[seq]])
        batch.fill(np.array([2]), np.array([1]), metadata.total_lens[[seq]], 1)
        alone = attend(case, q[[seq]], cache, batch.plan.bucket(1, decode_only=True))
        assert torch.equal(alone[0], got[seq])


@pytest.mark.parametrize("case", AHEAD_CASES, ids=str)
@pytest.mark.parametrize("filling", [0, 1])
def test_keys_read_ahead(case: Case, filling: int) -> None:
    q, cache = case.inputs()
    expected = naive_attention(q, cache, case.metadata(), case.head_dim**-0.5)
    step = case.device_step(filling=filling, reads_ahead=True)
    got = attend(case, torch.cat((q, q[:filling])), case.poison(cache), step)
    torch.testing.assert_close(got[: len(q)].double(), expected, rtol=1e-5, atol=1e-5)
    assert got[len(q) :].isnan().all()
    assert not step.arrivals_SH.any()


@pytest.mark.parametrize(
    "case",
    [
        Case(((4, 300),), 4, 2, 16),
        Case(((1, 40), (3, 3)), 4, 4, 32),
        Case(((1, 2), (5, 600), (2, 17), (9, 20)), 7, 1, 48),
    ],
    ids=str,
)
def test_tokens_of_chunks_are_decoded(case: Case) -> None:
    """Keys of the same step are not read ahead: in the bucket of four, too, where older ones are."""
    q, cache = case.inputs()
    expected = naive_attention(q, cache, case.metadata(), case.head_dim**-0.5)
    step = case.device_step(reads_ahead=True, decode_only=True)
    assert step.prefill_tiles == 0
    got = attend(case, q, case.poison(cache), step)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)
    assert not step.arrivals_SH.any()


def test_a_bucket_of_short_sequences_launches_one_kernel() -> None:
    case = AHEAD_CASES[1]
    q, cache = case.inputs()
    metadata = case.metadata()
    batch = DeviceBatch(case, 1, 1, metadata.block_tables.shape[1], "cpu", reads_ahead=True)
    batch.set_tables(np.array([0]), metadata.block_tables)
    batch.fill(np.array([0]), np.array([1]), metadata.total_lens, 1)
    both, one = (batch.plan.bucket(1, True, has_long) for has_long in (True, False))
    assert (both.decode_programs > 0, one.decode_programs) == (True, 0)
    assert torch.equal(attend(case, q, cache, both), attend(case, q, cache, one))


@pytest.mark.parametrize("chunk", [2, 5, 37])
def test_chunks_of_any_size_agree(chunk: int) -> None:
    """To the bit on a GPU (tests/gpu); here the BLAS under the interpreter sums rows in orders of its own."""
    case = Case(((74, 90),), 4, 1, 16)
    q, cache = case.inputs()
    metadata = case.metadata()
    whole = attend(case, q, cache, case.device_step())
    batch = DeviceBatch(case, 1, 74, metadata.block_tables.shape[1], "cpu")
    batch.set_tables(np.array([0]), metadata.block_tables)
    for first in range(0, 74 - 74 % chunk, chunk):
        batch.fill(np.array([0]), np.array([chunk]), np.array([16 + first + chunk]), chunk)
        part = attend(case, q[first : first + chunk], cache, batch.plan.bucket(chunk, decode_only=False))
        torch.testing.assert_close(part, whole[first : first + chunk], rtol=1e-5, atol=1e-6)


def test_fp8_cache() -> None:
    case = CASES[4]
    q, cache = case.inputs()
    cache = cache.to(torch.float8_e4m3fn)
    expected = naive_attention(q, cache.float(), case.metadata(), case.head_dim**-0.5)
    got = attend(case, q, case.poison(cache), case.device_step())
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", [CASES[1], CASES[4]], ids=str)
def test_quantised_rows(case: Case) -> None:
    q, cache = case.inputs()
    num_tokens, width = len(q), case.num_heads * case.head_dim
    out = torch.full_like(q, float("nan"))
    quantized = torch.full((num_tokens, width), float("nan")).to(torch.float8_e4m3fn)
    scale = torch.full((num_tokens,), float("nan"))
    step = case.device_step()
    paged_attention(q, cache, step, 0.2, out, quantized=quantized, quantized_scale_T=scale)
    assert torch.equal(scale, out.flatten(1).abs().amax(1) / 448)
    # The interpreter loses a carry into the exponent: now and then half of a number.
    difference = quantized.float() * scale[:, None] - out.flatten(1)
    assert (difference.norm(dim=1) < 0.15 * out.flatten(1).norm(dim=1)).all()
    assert not step.arrivals_SH.any()
