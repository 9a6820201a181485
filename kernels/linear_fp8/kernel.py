"""Computes the FP8 product in plain Triton: any shape, any GPU that has FP8, and the interpreter."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from kernels.backend import INTERPRETING
from kernels.compilation import Compilation
from kernels.linear_fp8.scratch import NUM_COUNTERS, NUM_PARTIALS, scratch
from kernels.linear_fp8.weight import Fp8Weight
from kernels.overlap import starts_early

BUSY_PROGRAMS = 256
"""Two for every multiprocessor: fewer leave memory idle."""
MAX_SPLIT = 8


@triton.jit
def linear_fp8_kernel(
    x_ptr,
    weight_ptr,
    scale_ptr,
    row_scale_ptr,
    bias_ptr,
    out_ptr,
    partial_ptr,
    counter_ptr,
    M,
    x_stride,
    out_stride,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
    STARTS_EARLY: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Semantics: out[m, n] = (sum_k x[m, k] W[n, k]) * scale[n] (* row_scale[m]) (+ bias[n])

    Args:
        x_ptr: e4m3 [M, K]. weight_ptr: e4m3 [N, K], contiguous.
        scale_ptr: fp32 [N] if PER_CHANNEL, else [1].
        row_scale_ptr: fp32 [M]; None leaves out divided by the row scale.
        bias_ptr: any float [N], or None.
        out_ptr: bf16 or fp32 [M, N].
        partial_ptr, counter_ptr: `scratch`, used where SPLIT_K > 1 as [tiles, SPLIT_K, BLOCK_N, BLOCK_M] and
            [tiles].
        WIDE: multiply as fp32, for the interpreter.

    A program has BLOCK_N channels (the operand with 64 rows and more, so that few rows of x do not leave the
    tensor cores idle), BLOCK_M rows, and one of SPLIT_K parts of K. The last program of a tile to arrive sums
    the parts in their order, so bits do not depend on who that is.

    Grid: tiles * SPLIT_K.
    """
    if STARTS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    program = tl.program_id(0)
    part, tile = program % SPLIT_K, program // SPLIT_K
    tiles_m = tl.cdiv(M, BLOCK_M)
    tile_n, tile_m = tile // tiles_m, tile % tiles_m
    part_k: tl.constexpr = (K + SPLIT_K * BLOCK_K - 1) // (SPLIT_K * BLOCK_K) * BLOCK_K
    first_k = part * part_k
    n_N = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    m_M = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    if STARTS_EARLY:
        tl.extra.cuda.gdc_wait()

    k_K = tl.arange(0, BLOCK_K)
    # Rows and channels past the end are read from the last one; what comes of them is not stored.
    weight_row = tl.minimum(n_N, N - 1).to(tl.int64) * K
    x_row = tl.minimum(m_M, M - 1).to(tl.int64) * x_stride
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for step in tl.range(0, part_k // BLOCK_K, num_stages=NUM_STAGES):
        k = first_k + step * BLOCK_K + k_K
        if K % (SPLIT_K * BLOCK_K) == 0:
            weight = tl.load(weight_ptr + weight_row[:, None] + k[None, :])
            x = tl.load(x_ptr + x_row[:, None] + k[None, :])
        else:
            weight = tl.load(weight_ptr + weight_row[:, None] + k[None, :], mask=(k < K)[None, :], other=0.0)
            x = tl.load(x_ptr + x_row[:, None] + k[None, :], mask=(k < K)[None, :], other=0.0)
        if WIDE:
            total = tl.dot(weight.to(tl.float32), tl.trans(x.to(tl.float32)), total)
        else:
            total = tl.dot(weight, tl.trans(x), total)

    is_last = True
    if SPLIT_K > 1:
        in_tile = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
        at = partial_ptr + tile.to(tl.int64) * (SPLIT_K * BLOCK_N * BLOCK_M) + in_tile
        kept = (m_M < M)[None, :]
        tl.store(at + part * (BLOCK_N * BLOCK_M), total, mask=kept)
        tl.debug_barrier()  # all of this program's stores, before its arrival
        is_last = tl.atomic_add(counter_ptr + tile, 1, sem="acq_rel") == SPLIT_K - 1
        if is_last:
            total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
            for other in tl.static_range(SPLIT_K):
                total += tl.load(at + other * (BLOCK_N * BLOCK_M), mask=kept, other=0.0, cache_modifier=".cg")
            tl.store(counter_ptr + tile, 0)
    if is_last:
        if PER_CHANNEL:
            total *= tl.load(scale_ptr + n_N, mask=n_N < N, other=0.0)[:, None]
        else:
            total *= tl.load(scale_ptr)
        if row_scale_ptr is not None:
            total *= tl.load(row_scale_ptr + m_M, mask=m_M < M, other=0.0)[None, :]
        if bias_ptr is not None:
            total += tl.load(bias_ptr + n_N, mask=n_N < N, other=0.0).to(tl.float32)[:, None]
        out_at = out_ptr + m_M.to(tl.int64)[None, :] * out_stride + n_N[:, None]
        inside = (m_M < M)[None, :] & (n_N < N)[:, None]
        tl.store(out_at, total.to(out_ptr.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True)
class Cut:
    """How one product is cut."""

    block_m: int
    block_n: int
    block_k: int
    split_k: int
    num_warps: int
    num_stages: int


def cut_of(num_rows: int, out_features: int, in_features: int) -> Cut:
    """A function of the shape alone, so that equal buckets give equal bits."""
    block_m = min(max(triton.next_power_of_2(num_rows), 16), 64)
    num_tiles = triton.cdiv(num_rows, block_m) * triton.cdiv(out_features, 64)
    split_k = 1
    while split_k < MAX_SPLIT and num_tiles * split_k * 2 <= BUSY_PROGRAMS and in_features >= split_k * 1024:
        split_k *= 2
    return Cut(block_m, 64, 128, split_k, num_warps=4, num_stages=5)


def linear_fp8_triton(
    quantized_TK: Tensor,
    row_scale_T: Tensor | None,
    weight: Fp8Weight,
    out_TN: Tensor,
    cut: Cut | None = None,
) -> None:
    """Launches `linear_fp8_kernel`."""
    num_rows, (n, k) = len(quantized_TK), weight.values_NK.shape
    if cut is None:
        cut = cut_of(num_rows, n, k)
    early = starts_early(quantized_TK)
    num_tiles = triton.cdiv(n, cut.block_n) * triton.cdiv(num_rows, cut.block_m)
    assert cut.split_k == 1 or num_tiles <= NUM_COUNTERS
    assert cut.split_k == 1 or num_tiles * cut.split_k * cut.block_n * cut.block_m <= NUM_PARTIALS
    partial, counters = scratch(quantized_TK.device)
    linear_fp8_kernel[(num_tiles * cut.split_k,)](
        quantized_TK,
        weight.values_NK,
        weight.scale,
        row_scale_T,
        weight.bias_N,
        out_TN,
        partial,
        counters,
        num_rows,
        quantized_TK.stride(0),
        out_TN.stride(0),
        N=n,
        K=k,
        BLOCK_M=cut.block_m,
        BLOCK_N=cut.block_n,
        BLOCK_K=cut.block_k,
        SPLIT_K=cut.split_k,
        NUM_STAGES=cut.num_stages,
        PER_CHANNEL=weight.per_channel,
        STARTS_EARLY=early,
        WIDE=INTERPRETING,
        num_warps=cut.num_warps,
        **({"launch_pdl": True} if early else {}),
    )


def _compilation(
    num_rows: int, n: int, k: int, per_channel: bool = False, bias: bool = False, early: bool = True
) -> Compilation:
    cut = cut_of(num_rows, n, k)
    pointers = {
        "x_ptr": "*fp8e4nv",
        "weight_ptr": "*fp8e4nv",
        "scale_ptr": "*fp32",
        "row_scale_ptr": "*fp32" if per_channel else None,
        "bias_ptr": "*bf16" if bias else None,
        "out_ptr": "*bf16",
        "partial_ptr": "*fp32",
        "counter_ptr": "*i32",
    }
    signature = {name: kind for name, kind in pointers.items() if kind is not None}
    return Compilation(
        linear_fp8_kernel,
        signature | dict.fromkeys(("M", "x_stride", "out_stride"), "i32"),
        {name: None for name, kind in pointers.items() if kind is None}
        | {"N": n, "K": k, "BLOCK_M": cut.block_m, "BLOCK_N": cut.block_n, "BLOCK_K": cut.block_k}
        | {"SPLIT_K": cut.split_k, "NUM_STAGES": cut.num_stages, "PER_CHANNEL": per_channel}
        | {"STARTS_EARLY": early, "WIDE": False},
        num_warps=cut.num_warps,
        architectures=(90, 100),
    )


COMPILATIONS: list[Compilation] = [
    _compilation(num_rows, n, k, per_channel, bias)
    for n, k in ((6144, 4096), (4096, 14336), (512, 256), (1280, 256), (256, 640))
    for num_rows, per_channel, bias in ((1, False, False), (32, True, False), (64, True, True))
]
if not INTERPRETING:  # Gluon's kernels cannot be interpreted
    from kernels.linear_fp8 import stream

    COMPILATIONS += stream.COMPILATIONS
