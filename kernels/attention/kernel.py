"""Launches of the attention kernels: decode, and beside it prefill where a bucket may hold chunks.

Owns grids and tile sizes. Refuses to know lengths: grids depend on the bucket, what there is to do is read on
the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.device_plan import MAX_SPLITS, PREFILL_ROWS, DeviceStep
from kernels.attention.kernels.decode import decode_kernel
from kernels.attention.kernels.prefill import prefill_kernel
from kernels.attention.kernels.rows import quantize_rows_kernel
from kernels.backend import INTERPRETING
from kernels.compilation import Compilation

MIN_DOT_ROWS = 16
"""Rows the tensor cores multiply at least."""


@dataclass(frozen=True, slots=True)
class Tile:
    """How a kernel walks along the keys."""

    keys: int
    num_warps: int
    num_stages: int


def decode_tile(head_dim: int, element_size: int) -> Tile:
    return Tile(64, 4, 3 if head_dim * element_size <= 256 else 2)


def prefill_tile(head_dim: int, element_size: int) -> Tile:
    return Tile(64, 8, 3 if head_dim <= 128 else 2)


def product_type(q: torch.dtype, cache: torch.dtype) -> tl.dtype:
    """What the products multiply in: e4m3 numbers are numbers of fp16, and turn into them in one instruction."""
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
    product = product_type(q_THD.dtype, cache_N2HBD.dtype)
    quantizing = quantized is not None and quantized_scale_T is not None
    group = num_heads // num_kv_heads
    scale_log2 = scale / math.log(2)
    block_d = max(MIN_DOT_ROWS, triton.next_power_of_2(head_dim))
    block_width = triton.next_power_of_2(num_heads * head_dim)
    tile = decode_tile(head_dim, cache_N2HBD.element_size())
    decode_kernel[(step.decode_programs,)](
        q_THD,
        cache_N2HBD,
        step.tables_RB,
        step.counts_2,
        step.seqs_S4,
        step.items_I,
        step.partials_IHD,
        step.stats_IH2,
        step.arrivals_SG,
        out_THD,
        quantized,
        quantized_scale_T,
        scale_log2,
        q_THD.stride(0),
        out_THD.stride(0),
        step.tables_RB.shape[1],
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_D=block_d,
        GROUP=group,
        BLOCK_GROUP=triton.next_power_of_2(group),
        BLOCK_M=max(MIN_DOT_ROWS, triton.next_power_of_2(group)),
        BLOCK_N=tile.keys,
        BLOCK_SIZE=block_size,
        BLOCK_SPLITS=MAX_SPLITS,
        BLOCK_WIDTH=block_width,
        QUANTIZE=quantizing and step.decode_only,
        PRODUCT=product,
        STAGES=tile.num_stages,
        num_warps=tile.num_warps,
    )
    if step.decode_only:
        return
    tile = prefill_tile(head_dim, cache_N2HBD.element_size())
    prefill_kernel[(step.prefill_tiles * num_kv_heads,)](
        q_THD,
        cache_N2HBD,
        step.tables_RB,
        step.counts_2,
        step.tiles_I4,
        out_THD,
        scale_log2,
        q_THD.stride(0),
        out_THD.stride(0),
        step.tables_RB.shape[1],
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_D=block_d,
        GROUP=group,
        BLOCK_M=PREFILL_ROWS,
        BLOCK_N=tile.keys,
        BLOCK_SIZE=block_size,
        PRODUCT=product,
        STAGES=tile.num_stages,
        num_warps=tile.num_warps,
    )
    if quantizing:
        quantize_rows_kernel[(num_tokens,)](
            out_THD,
            quantized,
            quantized_scale_T,
            step.positions_T,
            out_THD.stride(0),
            WIDTH=num_heads * head_dim,
            BLOCK_WIDTH=block_width,
            num_warps=4,
        )


_POINTERS = {
    "q_ptr": "*bf16",
    "tables_ptr": "*i32",
    "counts_ptr": "*i32",
    "out_ptr": "*bf16",
    "q_stride": "i32",
    "out_stride": "i32",
    "max_blocks": "i32",
}


def _geometry(num_heads: int, num_kv_heads: int, head_dim: int, cache: str) -> dict[str, object]:
    return {
        "NUM_KV_HEADS": num_kv_heads,
        "HEAD_DIM": head_dim,
        "BLOCK_D": max(MIN_DOT_ROWS, triton.next_power_of_2(head_dim)),
        "GROUP": num_heads // num_kv_heads,
        "BLOCK_SIZE": 16,
        "PRODUCT": tl.float16 if cache == "fp8e4nv" else tl.bfloat16,
    }


def _decode(num_heads: int, num_kv_heads: int, head_dim: int, cache: str, quantize: bool) -> Compilation:
    tile = decode_tile(head_dim, 1 if cache == "fp8e4nv" else 2)
    group = triton.next_power_of_2(num_heads // num_kv_heads)
    pointers = {
        "cache_ptr": f"*{cache}",
        "seqs_ptr": "*i32",
        "items_ptr": "*i32",
        "partials_ptr": "*fp32",
        "stats_ptr": "*fp32",
        "arrivals_ptr": "*i32",
        "quantized_ptr": "*fp8e4nv",
        "row_scale_ptr": "*fp32",
        "scale_log2": "fp32",
    }
    constexprs = _geometry(num_heads, num_kv_heads, head_dim, cache) | {
        "NUM_HEADS": num_heads,
        "BLOCK_GROUP": group,
        "BLOCK_M": max(MIN_DOT_ROWS, group),
        "BLOCK_N": tile.keys,
        "BLOCK_SPLITS": MAX_SPLITS,
        "BLOCK_WIDTH": triton.next_power_of_2(num_heads * head_dim),
        "QUANTIZE": quantize,
        "STAGES": tile.num_stages,
    }
    if not quantize:
        pointers = {
            name: kind for name, kind in pointers.items() if name not in ("quantized_ptr", "row_scale_ptr")
        }
        constexprs |= {"quantized_ptr": None, "row_scale_ptr": None}
    architectures = (90, 100) if quantize or cache == "fp8e4nv" else (80, 90, 100)
    return Compilation(
        decode_kernel, _POINTERS | pointers, constexprs, tile.num_warps, tile.num_stages, architectures
    )


def _prefill(num_heads: int, num_kv_heads: int, head_dim: int, cache: str) -> Compilation:
    tile = prefill_tile(head_dim, 1 if cache == "fp8e4nv" else 2)
    pointers = {"cache_ptr": f"*{cache}", "tiles_ptr": "*i32", "scale_log2": "fp32"}
    constexprs = _geometry(num_heads, num_kv_heads, head_dim, cache) | {
        "BLOCK_M": PREFILL_ROWS,
        "BLOCK_N": tile.keys,
        "STAGES": tile.num_stages,
    }
    architectures = (90, 100) if cache == "fp8e4nv" else (80, 90, 100)
    return Compilation(
        prefill_kernel, _POINTERS | pointers, constexprs, tile.num_warps, tile.num_stages, architectures
    )


def _quantize_rows(width: int) -> Compilation:
    pointers = {
        "out_ptr": "*bf16",
        "quantized_ptr": "*fp8e4nv",
        "row_scale_ptr": "*fp32",
        "positions_ptr": "*i32",
        "out_stride": "i32",
    }
    sizes = {"WIDTH": width, "BLOCK_WIDTH": triton.next_power_of_2(width)}
    return Compilation(quantize_rows_kernel, pointers, sizes, 4, architectures=(90, 100))


COMPILATIONS = [
    *(_decode(32, 8, 128, cache, quantize) for cache in ("bf16", "fp8e4nv") for quantize in (False, True)),
    *(_decode(8, 4, 32, cache, quantize=False) for cache in ("bf16", "fp8e4nv")),
    _decode(8, 4, 256, "bf16", quantize=False),
    *(_prefill(32, 8, 128, cache) for cache in ("bf16", "fp8e4nv")),
    *(_prefill(8, 4, 32, cache) for cache in ("bf16", "fp8e4nv")),
    _prefill(8, 4, 256, "bf16"),
    _quantize_rows(4096),
    _quantize_rows(256),
]
