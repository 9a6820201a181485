"""Launches the attention kernels: decode, beside it prefill where a bucket may hold chunks, then quantising.

Grids depend on the bucket; the kernels read lengths on the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.device_plan import MAX_SPLITS, PREFILL_ROWS, SPLIT_KEYS, DeviceStep
from kernels.attention.kernels.decode import decode_kernel
from kernels.attention.kernels.decode_ahead import decode_ahead_kernel
from kernels.attention.kernels.prefill import prefill_kernel
from kernels.attention.kernels.rows import quantize_rows_kernel
from kernels.backend import INTERPRETING
from kernels.compilation import ARCHITECTURES, Compilation
from kernels.overlap import starts_early

MIN_DOT_ROWS = 16
"""Fewest rows that the tensor cores multiply."""
QUANTIZE_WARPS = 8
"""A row of 4096 numbers is 16 a thread: little work, so latency is what there is to save."""


@dataclass(frozen=True, slots=True)
class Tile:
    """How a kernel walks along the keys."""

    keys: int
    num_warps: int
    num_stages: int
    max_registers: int | None = None


def decode_tile(head_dim: int) -> Tile:
    """Two warps, so that several programs share a multiprocessor and hide each other's waits.

    us of 256 x 192, 256 x 2048, 1 x 192 keys at the 8B shape, bf16: 64 keys, 2 warps, 3 stages 55, 528, 6.5;
    2 stages 54, 534, 7.5; 4 warps 64, 644, 7.6; 128 keys, 4 warps 69, 613, 6.7; 32 keys, 1 warp 55, 531, 11.
    e4m3, which goes through registers: 2 warps, 3 stages 49, 468, 6.5; 2 stages 49, 482, 7.5; 4 warps 64,
    675, 8.3.
    """
    return Tile(64, 2, 3) if head_dim <= 128 else Tile(32, 4, 2)


def ahead_warps(head_dim: int) -> int:
    """A thread holds 128 numbers of keys and as many of values."""
    return max(1, SPLIT_KEYS * triton.next_power_of_2(head_dim) // 4096)


def prefill_tile(head_dim: int, element_size: int) -> Tile:
    """Registers are capped so that two programs share a multiprocessor.

    TFLOP/s of 1 x 8192, 16 x 512 and 32 x 256 tokens at the 8B shape, bf16: 64 keys 477, 221, 143, uncapped
    330, 182, 120; 128 keys 387, 176, 110; 64 rows by 32 keys 403, 221, 150. e4m3: 128 keys 333, 169, 108;
    64 keys, capped 267, 169, 121; 64 rows by 64 keys 299, 187, 135.
    """
    if head_dim > 128:
        return Tile(32, 8, 2)
    return Tile(64, 8, 2, max_registers=128) if element_size > 1 else Tile(128, 8, 2)


def product_type(q: torch.dtype, cache: torch.dtype) -> tl.dtype:
    """What the products multiply in. Numbers of e4m3 are numbers of fp16: one instruction makes them so."""
    if INTERPRETING or q == torch.float32:
        return tl.float32
    return tl.float16 if cache == torch.float8_e4m3fn else tl.bfloat16


def launch_attention(
    q_THD: Tensor,
    cache_N2HBD: Tensor,
    step: DeviceStep,
    scale: float,
    out_THD: Tensor,
    quantized: Tensor | None,
    quantized_scale_T: Tensor | None,
) -> None:
    """See `kernels.attention.paged_attention`."""
    num_tokens, num_heads, head_dim = q_THD.shape
    num_kv_heads, block_size = cache_N2HBD.shape[2:4]
    for name, tensor in (("q", q_THD), ("out", out_THD)):
        assert tensor.stride()[1:] == (head_dim, 1), f"{name}: heads of a row follow one another"
    assert cache_N2HBD.numel() < head_dim << 31, "lines of the cache are counted in 32 bits"
    product = product_type(q_THD.dtype, cache_N2HBD.dtype)
    geometry = num_heads, num_kv_heads, head_dim, block_size
    sizes = scale / math.log(2), q_THD.stride(0), out_THD.stride(0), step.tables_RB.shape[1]
    tile = decode_tile(head_dim)
    early = starts_early(q_THD)
    options: dict[str, Any] = {"launch_pdl": True} if early else {}
    shares = step.partials_IHD, step.stats_IH2, step.arrivals_SH
    if step.decode_programs:
        decode_kernel[(step.decode_programs,)](
            q_THD,
            cache_N2HBD,
            step.tables_RB,
            step.counts_3,
            step.items_I4,
            *shares,
            out_THD,
            *sizes,
            **_decode_constants(*geometry, tile, product),
            STARTS_EARLY=early,
            num_warps=tile.num_warps,
            **options,
        )
    if step.ahead_items:
        decode_ahead_kernel[(step.ahead_items * num_heads,)](
            q_THD,
            cache_N2HBD,
            step.tables_RB,
            step.counts_3,
            step.ahead_items_I4,
            *shares,
            out_THD,
            *sizes,
            **_ahead_constants(*geometry),
            STARTS_EARLY=early,
            num_warps=ahead_warps(head_dim),
            **options,
        )
    if step.prefill_tiles:
        tile = prefill_tile(head_dim, cache_N2HBD.element_size())
        prefill_kernel[(step.prefill_tiles * num_kv_heads,)](
            q_THD,
            cache_N2HBD,
            step.tables_RB,
            step.counts_3,
            step.tiles_I4,
            out_THD,
            *sizes,
            **_prefill_constants(*geometry, tile, product),
            num_warps=tile.num_warps,
            maxnreg=tile.max_registers,
        )
    if quantized is not None:
        quantize_rows_kernel[(num_tokens,)](
            out_THD,
            quantized,
            quantized_scale_T,
            step.positions_T,
            out_THD.stride(0),
            **_row_constants(num_heads * head_dim),
            STARTS_EARLY=early,
            num_warps=QUANTIZE_WARPS,
            **options,
        )


def _decode_constants(
    num_heads: int, num_kv_heads: int, head_dim: int, block_size: int, tile: Tile, product: tl.dtype
) -> dict[str, Any]:
    group = num_heads // num_kv_heads
    return {
        "NUM_HEADS": num_heads,
        "NUM_KV_HEADS": num_kv_heads,
        "HEAD_DIM": head_dim,
        "BLOCK_D": max(MIN_DOT_ROWS, triton.next_power_of_2(head_dim)),
        "GROUP": group,
        "BLOCK_GROUP": triton.next_power_of_2(group),
        "BLOCK_M": max(MIN_DOT_ROWS, triton.next_power_of_2(group)),
        "BLOCK_N": tile.keys,
        "BLOCK_SIZE": block_size,
        "BLOCK_SPLITS": MAX_SPLITS,
        "PRODUCT": product,
        "STAGES": tile.num_stages,
    }


def _ahead_constants(num_heads: int, num_kv_heads: int, head_dim: int, block_size: int) -> dict[str, Any]:
    return {
        "NUM_HEADS": num_heads,
        "NUM_KV_HEADS": num_kv_heads,
        "HEAD_DIM": head_dim,
        "BLOCK_D": triton.next_power_of_2(head_dim),
        "KEYS": triton.next_power_of_2(SPLIT_KEYS),
        "BLOCK_SIZE": block_size,
        "BLOCK_SPLITS": MAX_SPLITS,
    }


def _prefill_constants(
    num_heads: int, num_kv_heads: int, head_dim: int, block_size: int, tile: Tile, product: tl.dtype
) -> dict[str, Any]:
    return {
        "NUM_KV_HEADS": num_kv_heads,
        "HEAD_DIM": head_dim,
        "BLOCK_D": max(MIN_DOT_ROWS, triton.next_power_of_2(head_dim)),
        "GROUP": num_heads // num_kv_heads,
        "BLOCK_M": PREFILL_ROWS,
        "BLOCK_N": tile.keys,
        "BLOCK_SIZE": block_size,
        "PRODUCT": product,
        "STAGES": tile.num_stages,
    }


def _row_constants(width: int) -> dict[str, Any]:
    return {"WIDTH": width, "BLOCK_WIDTH": triton.next_power_of_2(width)}


SM_100_SPILLS = 64
"""Bytes per thread."""

_SIGNATURE = {
    "q_ptr": "*bf16",
    "tables_ptr": "*i32",
    "counts_ptr": "*i32",
    "out_ptr": "*bf16",
    "scale_log2": "fp32",
    "q_stride": "i32",
    "out_stride": "i32",
    "max_blocks": "i32",
}
_DECODE = {"items_ptr": "*i32", "partials_ptr": "*fp32", "stats_ptr": "*fp32", "arrivals_ptr": "*i32"}
_ROWS = {
    "out_ptr": "*bf16",
    "quantized_ptr": "*fp8e4nv",
    "row_scale_ptr": "*fp32",
    "positions_ptr": "*i32",
    "out_stride": "i32",
}


def _compilations(num_heads: int, num_kv_heads: int, head_dim: int, fp8: bool) -> list[Compilation]:
    """Decode and prefill of a shape, as they are launched but for the cap on registers.

    On sm_100 the compiler spills some: allowed, and not measured. Heads of 256 spill in prefill everywhere.
    """
    element_size, cache = (1, "fp8e4nv") if fp8 else (2, "bf16")
    product = tl.float16 if fp8 else tl.bfloat16
    geometry = num_heads, num_kv_heads, head_dim, 16
    signature = _SIGNATURE | {"cache_ptr": f"*{cache}"}
    decode, prefill = decode_tile(head_dim), prefill_tile(head_dim, element_size)
    decode_constants = _decode_constants(*geometry, decode, product)
    prefill_constants = _prefill_constants(*geometry, prefill, product)
    found: list[Compilation] = []
    for architecture in (90, 100) if fp8 else ARCHITECTURES:
        local_bytes = SM_100_SPILLS if architecture == 100 else 0
        early = {"STARTS_EARLY": architecture >= 90}
        found += [
            Compilation(
                kernel, pointers, constants, tile.num_warps, tile.num_stages, (architecture,), local_bytes
            )
            for kernel, pointers, constants, tile in (
                (decode_kernel, signature | _DECODE, decode_constants | early, decode),
                (prefill_kernel, signature | {"tiles_ptr": "*i32"}, prefill_constants, prefill),
            )
        ]
    ahead = _ahead_constants(*geometry) | {"STARTS_EARLY": True}
    found.append(
        Compilation(
            decode_ahead_kernel, signature | _DECODE, ahead, ahead_warps(head_dim), architectures=(90, 100)
        )
    )
    return found


COMPILATIONS = [
    *(one for fp8 in (False, True) for one in _compilations(32, 8, 128, fp8)),
    *(one for fp8 in (False, True) for one in _compilations(8, 4, 32, fp8)),
    *(
        Compilation(
            quantize_rows_kernel,
            _ROWS,
            _row_constants(width) | {"STARTS_EARLY": True},
            QUANTIZE_WARPS,
            architectures=(90, 100),
        )
        for width in (4096, 256)
    ),
]
