"""The interpreter itself, and that ops choose it."""

import torch
import triton
import triton.language as tl

from kernels import backend


@triton.jit
def _double(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, 2 * tl.load(x_ptr + at, at < size), at < size)


def test_kernels_run_on_tensors_of_a_cpu():
    x = torch.arange(100.0)
    out = torch.full_like(x, torch.nan)
    _double[(4,)](x, out, 100, BLOCK=32)
    assert torch.equal(out, 2 * x)


def test_ops_choose_triton():
    assert backend.INTERPRETING
    assert backend.uses_triton(torch.zeros(1))
