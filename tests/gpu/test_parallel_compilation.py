"""Kernels that are compiled ahead are not launched meanwhile, and not compiled again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs

from kernels.parallel_compilation import compiled_in_parallel

pytestmark = pytest.mark.gpu


@triton.jit
def add_kernel(x_ptr, addend, count, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < count) + addend, mask=at < count)


@triton.jit
def wrong_kernel(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), tl.arange(0, BLOCK // 2))


def test_what_is_launched_in_the_block_is_only_compiled(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    x = torch.zeros(64, device=device)
    with compiled_in_parallel(2):
        for block in (16, 32, 64):
            add_kernel[(1,)](x, 1.5, 16, BLOCK=block)
    assert x.eq(0).all()
    compiled_later = []
    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", lambda **found: compiled_later.append(found["repr"]))
    for block in (16, 32, 64):
        add_kernel[(1,)](x, 1.5, 16, BLOCK=block)
    assert compiled_later == []
    assert x[:16].eq(4.5).all()
    assert x[16:].eq(0).all()
    add_kernel[(1,)](x, 1.5, 16, BLOCK=128)
    assert len(compiled_later) == 1


def test_a_kernel_that_does_not_compile_is_an_error_when_it_is_launched(device: torch.device) -> None:
    x = torch.zeros(64, device=device)
    for _ in range(2):
        with compiled_in_parallel(2):
            wrong_kernel[(1,)](x, BLOCK=16)
        with pytest.raises(triton.CompilationError):
            wrong_kernel[(1,)](x, BLOCK=16)
