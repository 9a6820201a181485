"""Launches the 4-bit linear on a GPU: chooses kernel, tiles and shares of K by shape, and holds the scratch
memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from kernels.activation import Activation
from kernels.backend import INTERPRETING
from kernels.compilation import Compilation
from kernels.linear_int4.kernels.product import dequantize_kernel, linear_int4_kernel
from kernels.linear_int4.weight import STEP_INPUTS, Int4Weight
from kernels.overlap import starts_early

MAX_TILED_ROWS = {"bf16": 256, "fp8": 512}
"""By what tensor cores multiply. With more rows it is cheaper to make the weight bf16 and give it to the BLAS
(README); never with signed codes."""
MAX_EARLY_ROWS = 32
"""Up to which starting before the kernel before it ends gains; with more, blocks that wait take the places of
blocks that work (README)."""
DEQUANTIZE_ROWS = 64
MANY_TILES = 264
"""Two for each of an H200's 132 multiprocessors, for which tiles were chosen; a fixed number, so that bits do
not follow the device."""


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


def choose_tiling(num_rows: int, out_features: int, in_features: int, fp8: bool) -> Tiling:
    """By the bucket's rows and the weight's shape and order only: what a row's bits depend on."""
    pairs = -(-in_features // STEP_INPUTS)
    block_t = next(size for size in (16, 32, 64, 128) if size >= min(num_rows, 128))
    tiles_t = -(-num_rows // block_t)
    deep = 4 if fp8 and block_t <= 32 else 3  # deeper ones of bf16 rows leave room for one block only
    if not fp8 and block_t >= 64:
        tiles = -(-out_features // 128) * tiles_t
        return Tiling(block_t, 128, _shares(192 // tiles, pairs), 3, 8)
    tiles = -(-out_features // 64) * tiles_t
    if tiles >= MANY_TILES:
        wide = block_t in (32, 64)  # every tile reads all of x: fewer of them, where that is much
        return Tiling(block_t, 128 if wide else 64, 1, deep if block_t == 32 else 3, 4)
    return Tiling(block_t, 64, _shares((256 if block_t < 128 else 192) // tiles, pairs), deep, 4)


def _shares(most: int, pairs: int) -> int:
    """The largest power of two that leaves two pairs to a share."""
    splits = 1
    while splits * 2 <= most and splits * 4 <= pairs:
        splits *= 2
    return splits


def linear_int4_triton(activation: Activation, weight: Int4Weight, out_TN: Tensor) -> Tensor:
    """Semantics: see `linear_int4`."""
    x_TK = activation.quantized_TK if weight.for_fp8 else activation.x_TK
    scale_T = activation.scale_T if weight.for_fp8 else None
    assert x_TK is not None
    num_rows = len(x_TK)
    most = MAX_TILED_ROWS["fp8" if weight.for_fp8 else "bf16"]
    if num_rows > most and not weight.signed and not INTERPRETING:
        if scale_T is not None:
            # What decoding would read too, though adapters may have left the plain rows here.
            x_TK = x_TK.to(torch.bfloat16).mul_(scale_T[:, None])
        return _linear_through_bf16(_ordered(x_TK, weight), weight, out_TN)
    tiling = choose_tiling(num_rows, weight.out_features, weight.in_features, weight.for_fp8)
    return launch(_ordered(x_TK, weight), scale_T, weight, out_TN, tiling)


def _ordered(x_TK: Tensor, weight: Int4Weight) -> Tensor:
    """Columns in the order of the codes."""
    if weight.order_K is None:
        return x_TK
    if x_TK.element_size() == 1:  # e4m3 cannot be indexed
        return x_TK.view(torch.uint8).index_select(1, weight.order_K).view(x_TK.dtype)
    return x_TK.index_select(1, weight.order_K)


def launch(
    x_TK: Tensor,
    scale_T: Tensor | None,
    weight: Int4Weight,
    out_TN: Tensor,
    tiling: Tiling,
    early: bool | None = None,
) -> Tensor:
    """One launch with these tiles; columns of x in the order of the codes; `early` None: where it gains."""
    num_rows, in_features = x_TK.shape
    tiles_n, tiles_t = -(-weight.out_features // tiling.block_n), -(-num_rows // tiling.block_t)
    if tiles_n * tiles_t == 0:
        return out_TN
    splits = tiling.splits
    assert weight.words.shape[0] * 128 % tiling.block_n == 0
    assert splits == 1 or tiles_n * tiles_t <= len(weight.arrivals)
    if splits > 1:
        size = (tiles_n * tiles_t, splits, tiling.block_t, tiling.block_n)
        partial = torch.empty(size, dtype=torch.float32, device=x_TK.device)
    else:
        partial = out_TN  # never read
    if early is None:
        early = num_rows <= MAX_EARLY_ROWS and starts_early(x_TK)
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
        num_warps=8,
    )
    return out_NK


def _linear_through_bf16(x_TK: Tensor, weight: Int4Weight, out_TN: Tensor) -> Tensor:
    shape = (weight.out_features, weight.in_features)
    whole_NK = dequantize(weight, torch.empty(shape, dtype=torch.bfloat16, device=x_TK.device))
    if weight.bias_N is not None:
        return torch.addmm(weight.bias_N.to(out_TN.dtype), x_TK, whole_NK.t(), out=out_TN)
    return torch.mm(x_TK, whole_NK.t(), out=out_TN)


SHAPES = {
    # The 8B shape, then sapling's, whose sizes are no multiples of a pair of groups.
    (6144, 4096): (1, 32, 64, 128),
    (4096, 14336): (1, 32, 64, 128),
    (28672, 4096): (1, 32, 64, 128),
    (512, 256): (1,),
    (256, 640): (1, 32),
}
"""(out_features, in_features) -> rows of the launches that are compiled ahead."""


def _compilation(
    num_rows: int,
    shape: tuple[int, int],
    kind: str,
    half: bool,
    with_zeros: bool,
    architectures: tuple[int, ...],
) -> Compilation:
    fp8, early = kind == "fp8", min(architectures) >= 90
    tiling = choose_tiling(num_rows, *shape, fp8)
    pointers = {"words_ptr": "*i32", "scales_ptr": "*i32", "out_ptr": "*bf16"}
    pointers |= {"x_ptr": "*fp8e4nv" if fp8 else "*bf16", "partial_ptr": "*fp32", "arrivals_ptr": "*i32"}
    pointers |= {"zeros_ptr": "*i32"} if with_zeros else {}
    pointers |= {"x_scale_ptr": "*fp32"} if fp8 else {}
    pointers |= {"bias_ptr": "*fp32"} if with_zeros else {}
    sizes = ("num_rows", "num_pairs", "x_units", "out_features", "padded_features", "in_features")
    optional = ("zeros_ptr", "x_scale_ptr", "bias_ptr")
    constexprs: dict[str, Any] = {name: None for name in optional if name not in pointers}
    constexprs |= {
        "BLOCK_T": tiling.block_t,
        "BLOCK_N": tiling.block_n,
        "SPLITS": tiling.splits,
        "STAGES": tiling.stages,
        "X_UNIT": 16 if fp8 else 8,
        "MASK_K": shape[1] % STEP_INPUTS != 0,
        "HALF": half,
        "FP8": fp8,
        "FETCH_PAIRS": tiling.fetch_pairs,
        "STARTS_EARLY": early and num_rows <= MAX_EARLY_ROWS,
        "INTERPRETING": False,
    }
    return Compilation(
        linear_int4_kernel,
        pointers | dict.fromkeys(sizes, "i32"),
        constexprs,
        num_warps=tiling.num_warps,
        num_stages=tiling.stages,
        architectures=architectures,
        # Addresses for after the loop; on an H200 these tiles are the fastest with them.
        local_bytes=160 if tiling.block_t >= 64 else 0,
    )


def _dequantization(fp8: bool, with_zeros: bool, architectures: tuple[int, ...]) -> Compilation:
    pointers = {"words_ptr": "*i32", "scales_ptr": "*i32", "out_ptr": "*bf16"}
    sizes = ("num_pairs", "out_features", "padded_features", "in_features")
    absent: dict[str, Any] = {} if with_zeros else {"zeros_ptr": None}
    return Compilation(
        dequantize_kernel,
        pointers | ({"zeros_ptr": "*i32"} if with_zeros else {}) | dict.fromkeys(sizes, "i32"),
        absent | {"BLOCK_N": DEQUANTIZE_ROWS, "HALF": with_zeros, "FP8": fp8, "INTERPRETING": False},
        num_warps=8,
        architectures=architectures,
    )


COMPILATIONS = [
    # FP8 products need 89. Without FP8 the same sizes have to do on an A100.
    *(
        _compilation(num_rows, shape, "fp8", half=False, with_zeros=False, architectures=(90, 100))
        for shape, row_counts in SHAPES.items()
        for num_rows in row_counts
    ),
    *(
        _compilation(num_rows, (6144, 4096), "fp8", half=True, with_zeros=True, architectures=(90, 100))
        for num_rows in (1, 128)
    ),
    *(
        _compilation(
            num_rows, (6144, 4096), "bf16", half=zeros, with_zeros=zeros, architectures=architectures
        )
        for num_rows in (1, 64)
        for zeros in (False, True)
        for architectures in ((80,), (90, 100))
    ),
    *(_dequantization(False, zeros, (80, 90, 100)) for zeros in (False, True)),
    *(_dequantization(True, zeros, (90, 100)) for zeros in (False, True)),
]
