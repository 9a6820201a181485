"""The interpreter itself, and that ops choose it."""

import pytest
import torch
import triton
import triton.language as tl

from kernels import backend


@triton.jit
def _double(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, 2 * tl.load(x_ptr + at, at < size), at < size)


@triton.jit
def _first_and_sum(first_a, sum_a, first_b, sum_b):
    return tl.where(first_a != 0, first_a, first_b), sum_a + sum_b


@triton.jit
def _reduce(x_ptr, first_ptr, sum_ptr, AXIS: tl.constexpr, KEPT: tl.constexpr):
    at = tl.arange(0, 8)[:, None] * 16 + tl.arange(0, 16)[None, :]
    x = tl.load(x_ptr + at)
    first, total = tl.reduce((x, x.to(tl.int64)), AXIS, _first_and_sum, keep_dims=KEPT)
    if KEPT:
        first, total = first.reshape(16 if AXIS == 0 else 8), total.reshape(16 if AXIS == 0 else 8)
    to = tl.arange(0, 16 if AXIS == 0 else 8)
    tl.store(first_ptr + to, first)
    tl.store(sum_ptr + to, total)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kept", [False, True])
def test_reductions_keep_the_order_of_numbers(axis, kept):
    x = torch.randint(-3, 4, (8, 16), generator=torch.Generator().manual_seed(axis), dtype=torch.int32)
    x[:, 5], x[2] = 0, 0
    first, total = torch.full((16,), -9, dtype=torch.int32), torch.full((16,), -9)
    _reduce[(1,)](x, first, total, AXIS=axis, KEPT=kept)
    lines = x.T.tolist() if axis == 0 else x.tolist()
    num = len(lines)
    assert first[:num].tolist() == [next((value for value in line if value), 0) for line in lines]
    assert total[:num].tolist() == [sum(line) for line in lines]
    assert first[num:].tolist() == [-9] * (16 - num)


def test_kernels_run_on_tensors_of_a_cpu():
    x = torch.arange(100.0)
    out = torch.full_like(x, torch.nan)
    _double[(4,)](x, out, 100, BLOCK=32)
    assert torch.equal(out, 2 * x)


def test_ops_choose_triton():
    assert backend.INTERPRETING
    assert backend.uses_triton(torch.zeros(1))
