"""How the 4-bit linear is launched: which kernel, which tiles, how many shares of K.

Owns the choice by shape and the scratch memory. Refuses to know what the kernels do inside a tile.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from kernels.backend import INTERPRETING
from kernels.linear_int4.kernel import dequantize_kernel, linear_int4_kernel
from kernels.linear_int4.weight import STEP_INPUTS, Int4Weight
from kernels.overlap import starts_early

MAX_TILED_ROWS = 256
"""With more rows the products outweigh making the weight bf16 once and giving it to the BLAS (README)."""
DEQUANTIZE_ROWS = 64


@dataclass(frozen=True, slots=True)
class Tiling:
    """Of one launch."""

    block_t: int
    block_n: int
    splits: int
    """Shares of K; at most one per pair of groups."""
    stages: int
    num_warps: int
    fetch_pairs: int = 4


def choose_tiling(num_rows: int, out_features: int, in_features: int) -> Tiling:
    """By the bucket's rows and the weight's shape only: what a row's bits depend on."""
    block_t = next(size for size in (16, 32, 64, 128) if size >= min(num_rows, 128))
    tiles = -(-out_features // 128) * -(-num_rows // block_t)
    splits = max(1, min(8, 264 // tiles, -(-in_features // STEP_INPUTS)))
    return Tiling(block_t, 128, splits, 3, 8)


def linear_int4_triton(
    x_TK: Tensor,
    weight: Int4Weight,
    out_TN: Tensor,
    quantized_TK: Tensor | None,
    scale_T: Tensor | None,
) -> Tensor:
    """Semantics: see `linear_int4`."""
    if weight.order_K is not None:
        x_TK = x_TK.index_select(1, weight.order_K)
    num_rows = x_TK.shape[0]
    if num_rows > MAX_TILED_ROWS and not INTERPRETING:
        return _linear_through_bf16(x_TK, weight, out_TN)
    tiling = choose_tiling(num_rows, weight.out_features, weight.in_features)
    if weight.for_fp8:
        assert quantized_TK is not None and scale_T is not None
        if weight.order_K is not None:
            quantized_TK = (
                quantized_TK.view(torch.uint8).index_select(1, weight.order_K).view(quantized_TK.dtype)
            )
        return launch(quantized_TK, scale_T, weight, out_TN, tiling)
    return launch(x_TK, None, weight, out_TN, tiling)


def launch(
    x_TK: Tensor,
    scale_T: Tensor | None,
    weight: Int4Weight,
    out_TN: Tensor,
    tiling: Tiling,
    early: bool | None = None,
) -> Tensor:
    """One launch with these tiles; columns of x in the order of the codes."""
    num_rows, in_features = x_TK.shape
    tiles_n, tiles_t = -(-weight.out_features // tiling.block_n), -(-num_rows // tiling.block_t)
    if tiles_n * tiles_t == 0:
        return out_TN
    splits = tiling.splits
    assert weight.words.shape[0] * 128 % tiling.block_n == 0
    assert tiles_n * tiles_t <= len(weight.arrivals)
    if splits > 1:
        size = (tiles_n * tiles_t, splits, tiling.block_t, tiling.block_n)
        partial = torch.empty(size, dtype=torch.float32, device=x_TK.device)
    else:
        partial = out_TN  # never read
    if early is None:
        early = starts_early(x_TK)
    unit = 16 // x_TK.element_size()
    if x_TK.stride(0) % unit or x_TK.data_ptr() % 16:
        unit = 1
    linear_int4_kernel[(tiles_n * splits * tiles_t,)](
        x_TK,
        scale_T,
        weight.words,
        weight.scales,
        weight.zeros,
        weight.bias_N,
        out_TN,
        partial,
        weight.arrivals,
        num_rows,
        weight.words.shape[1] // 2,
        x_TK.stride(0) // unit,
        weight.out_features,
        weight.scales.shape[1],
        in_features,
        BLOCK_T=tiling.block_t,
        BLOCK_N=tiling.block_n,
        SPLITS=splits,
        STAGES=tiling.stages,
        X_UNIT=unit,
        MASK_K=in_features % STEP_INPUTS != 0,
        HALF=weight.scale_dtype == torch.float16,
        FP8=weight.for_fp8,
        FETCH_PAIRS=tiling.fetch_pairs,
        STARTS_EARLY=early,
        INTERPRETING=INTERPRETING,
        num_warps=tiling.num_warps,
        num_stages=tiling.stages,
        **({"launch_pdl": True} if early else {}),
    )
    return out_TN


def dequantize(weight: Int4Weight, out_NK: Tensor) -> Tensor:
    """Semantics: out[n, k] = (code[n, k] - zero[n, k / 128]) * scale[n, k / 128], bf16, columns as stored."""
    grid = (weight.num_groups, triton.cdiv(weight.out_features, DEQUANTIZE_ROWS))
    dequantize_kernel[grid](
        weight.words,
        weight.scales,
        weight.zeros,
        out_NK,
        weight.words.shape[1] // 2,
        weight.out_features,
        weight.scales.shape[1],
        weight.in_features,
        BLOCK_N=DEQUANTIZE_ROWS,
        HALF=weight.scale_dtype == torch.float16,
        FP8=weight.for_fp8,
        INTERPRETING=INTERPRETING,
        num_warps=4,
    )
    return out_NK


def _linear_through_bf16(x_TK: Tensor, weight: Int4Weight, out_TN: Tensor) -> Tensor:
    shape = (weight.out_features, weight.in_features)
    whole_NK = dequantize(weight, torch.empty(shape, dtype=torch.bfloat16, device=x_TK.device))
    if weight.bias_N is not None:
        return torch.addmm(weight.bias_N.to(out_TN.dtype), x_TK, whole_NK.t(), out=out_TN)
    return torch.mm(x_TK, whole_NK.t(), out=out_TN)
