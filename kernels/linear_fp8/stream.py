"""Launches the FP8 product on Hopper for few rows: every multiprocessor reads an equal share of the weights,
early.

(The kernel is in Gluon, Triton's own lower level: plain Triton cannot request weights before the wait.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.compilation import Compilation
from kernels.linear_fp8.kernels.stream import linear_fp8_stream_kernel
from kernels.linear_fp8.scratch import NUM_COUNTERS, NUM_PARTIALS, scratch
from kernels.linear_fp8.weight import Fp8Weight

BLOCK_N = 64
BLOCK_K = 512
NUM_WARPS = 4
"""Of 8 to 10 cuts per shape, 64 channels by 512 bytes was the fastest nearly everywhere: few barriers per
byte, and small partial sums. README.md has the figures."""
MAX_ROWS = 128
RING_BYTES = 222 << 10
"""Of shared memory for tiles in flight and sums that change their layout: up to 16 rows, five tiles, 21 MB of
weights on 128 multiprocessors."""


@dataclass(frozen=True, slots=True)
class StreamCut:
    """How one product is cut."""

    block_m: int
    block_n: int
    block_k: int
    num_stages: int
    programs: int
    max_parts: int
    num_warps: int = NUM_WARPS


@cache
def stream_cut(num_rows: int, out_features: int, in_features: int, multiprocessors: int) -> StreamCut:
    """The cut for a shape and a GPU: a function of the shape alone, so that equal buckets give equal bits."""
    block_m = max(triton.next_power_of_2(num_rows), 16)
    block_k = BLOCK_K if block_m <= 64 else BLOCK_K // 2
    num_tiles = triton.cdiv(out_features, BLOCK_N)
    units = num_tiles * triton.cdiv(in_features, block_k)
    programs = min(even_programs(num_tiles, multiprocessors), units)
    max_parts = max_programs_per_tile(num_tiles, units, programs)
    stage_bytes = (BLOCK_N + block_m) * block_k
    room = RING_BYTES - BLOCK_N * block_m * 4  # sums change their layout through shared memory
    assert 2 * programs * block_m * BLOCK_N <= NUM_PARTIALS
    assert num_tiles <= NUM_COUNTERS
    return StreamCut(block_m, BLOCK_N, block_k, room // stage_bytes, programs, max_parts)


def at_once(num_rows: int, lets_in_late: bool) -> int:
    """Tiles under way to each multiprocessor while the input is waited for, 4 MB for each: what the kernels
    before still read stands behind them.

    ms a step of the 8B on an H200 with 5 / 3 / 2 / 1: 1 row 2.45 / 2.39 / 2.35 / 2.38, 8 rows 2.72 / 2.69 /
    2.60 / 2.54, 32 rows 3.03 / 2.99 / 2.92 / 2.89, 1 row on an adapter 2.87 / 2.85 / 2.76 / 2.70.
    """
    return 1 if lets_in_late or num_rows >= 8 else 2


def even_programs(num_tiles: int, multiprocessors: int) -> int:
    """Programs that share the tiles most evenly, among nearly as many as there are multiprocessors.

    128 of 132 read 64 tiles as halves, so that no tile has more than two parts to be added: 132 would cut it
    in up to four.
    """
    return max(range(multiprocessors, multiprocessors * 15 // 16, -1), key=lambda p: math.gcd(p, num_tiles))


def max_programs_per_tile(num_tiles: int, units: int, programs: int) -> int:
    """The most programs that have a part of one tile."""
    steps = units // num_tiles
    return max(
        ((tile * steps + steps) * programs - 1) // units - ((tile * steps + 1) * programs - 1) // units + 1
        for tile in range(num_tiles)
    )


def streams(num_rows: int, out_features: int, in_features: int, device: torch.device) -> bool:
    """Whether the kernel can run this product.

    It needs Hopper's instructions, rows at multiples of 16 bytes for the copy engine, and a tile for every
    multiprocessor.
    """
    if device.type != "cuda" or not _is_hopper(device) or num_rows > MAX_ROWS or in_features % 16:
        return False
    return out_features * in_features >= _multiprocessors(device) * BLOCK_N * BLOCK_K


def stream_parts(num_rows: int, weight: Fp8Weight) -> int:
    """Parts in which the kernel leaves sums that it does not add up itself."""
    multiprocessors = _multiprocessors(weight.values_NK.device)
    return stream_cut(num_rows, weight.out_features, weight.in_features, multiprocessors).max_parts


@cache
def _is_hopper(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) == (9, 0)


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def _layout(rows: int, columns: int) -> Any:
    return gl.NVMMASharedLayout.get_default_for([rows, columns], gl.float8e4nv)


def linear_fp8_stream(
    quantized_TK: Tensor,
    row_scale_T: Tensor | None,
    weight: Fp8Weight,
    out_TN: Tensor,
    cut: StreamCut | None = None,
    *,
    copies: tuple[int, ...] = (),
    lets_in_late: bool = False,
) -> None:
    """Launches `linear_fp8_stream_kernel` where `streams` says it can run.

    `out_TN` may be fp32 `[num_parts, T, N]`, contiguous: parts whose sum is the product, and which are
    written to `copies` as well. `lets_in_late`: the next kernel begins once the input is there, not before.
    """
    num_rows, device = len(quantized_TK), quantized_TK.device
    n, k = weight.values_NK.shape
    if cut is None:
        cut = stream_cut(num_rows, n, k, _multiprocessors(device))
    partial, counters = scratch(device)
    weight_block, x_block = [cut.block_n, cut.block_k], [cut.block_m, cut.block_k]
    linear_fp8_stream_kernel[(cut.programs,)](
        TensorDescriptor.from_tensor(weight.values_NK, weight_block, _layout(*weight_block)),
        TensorDescriptor.from_tensor(quantized_TK, x_block, _layout(*x_block)),
        weight.scale,
        row_scale_T,
        weight.bias_N,
        out_TN,
        copies or None,
        partial,
        counters,
        num_rows,
        out_TN.stride(-2),
        N=n,
        K=k,
        BLOCK_M=cut.block_m,
        BLOCK_N=cut.block_n,
        BLOCK_K=cut.block_k,
        NUM_STAGES=cut.num_stages,
        AT_ONCE=at_once(num_rows, lets_in_late),
        PROGRAMS=cut.programs,
        MAX_PARTS=cut.max_parts,
        PER_CHANNEL=weight.per_channel,
        LETS_IN_LATE=lets_in_late,
        IN_PARTS=out_TN.dim() == 3,
        COPIES=len(copies),
        num_warps=cut.num_warps,
        launch_pdl=True,
    )


class GluonCompilation(Compilation):
    """A Gluon kernel begins as another language, and has its stages written in it."""

    source_type = GluonASTSource

    @property
    def options(self) -> dict[str, int]:
        return {"num_warps": self.num_warps}


def _compilation(
    num_rows: int,
    n: int,
    k: int,
    per_channel: bool = False,
    bias: bool = False,
    late: bool = False,
    in_parts: bool = False,
    num_copies: int = 0,
) -> Compilation:
    cut = stream_cut(num_rows, n, k, 132)

    def descriptor(rows: int) -> str:
        return f"tensordesc<fp8e4nv[{rows}, {cut.block_k}],{_layout(rows, cut.block_k)!r}>"

    pointers = {
        "scale_ptr": "*fp32",
        "row_scale_ptr": "*fp32" if per_channel or in_parts else None,
        "bias_ptr": "*bf16" if bias else None,
        "out_ptr": "*fp32" if in_parts else "*bf16",
        "copies": ("i64",) * num_copies or None,
        "partial_ptr": "*fp32",
        "counter_ptr": "*i32",
    }
    signature = {name: kind for name, kind in pointers.items() if kind is not None}
    signature |= {"weight_desc": descriptor(cut.block_n), "x_desc": descriptor(cut.block_m)}
    return GluonCompilation(
        linear_fp8_stream_kernel,
        signature | {"M": "i32", "out_stride": "i32"},
        {name: None for name, kind in pointers.items() if kind is None}
        | {"N": n, "K": k, "BLOCK_M": cut.block_m, "BLOCK_N": cut.block_n, "BLOCK_K": cut.block_k}
        | {"NUM_STAGES": cut.num_stages, "PROGRAMS": cut.programs, "MAX_PARTS": cut.max_parts}
        | {"PER_CHANNEL": per_channel, "LETS_IN_LATE": late, "IN_PARTS": in_parts}
        | {"COPIES": num_copies, "AT_ONCE": at_once(num_rows, late), "num_warps": cut.num_warps},
        num_warps=cut.num_warps,
        architectures=(90,),
    )


COMPILATIONS = [
    _compilation(num_rows, n, k, per_channel, bias, late)
    for n, k in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
    for num_rows, per_channel, bias, late in (
        (1, False, False, False),
        (1, False, False, True),
        (32, True, False, False),
        (64, True, True, True),
    )
] + [
    _compilation(1, 6144, 4096, in_parts=True),
    _compilation(1, 4096, 2048, in_parts=True, num_copies=1),
    _compilation(64, 4096, 14336, per_channel=True, bias=True, late=True, in_parts=True),
]
