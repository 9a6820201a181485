"""Rotates q and k and writes keys and values on a GPU: one launch per layer, every head read and written
once.

Positions and block tables are read on the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.activation import AdapterDelta
from kernels.compilation import Compilation
from kernels.overlap import starts_early

if TYPE_CHECKING:
    from kernels.rope_kv import Placement

E4M3_MAX = tl.constexpr(448.0)

PROGRAM_ELEMENTS = 2048
"""Numbers a program holds: its heads times their size. At 1 row of the 8B shape 3 programs of 16 heads."""
NUM_WARPS = 4


@triton.jit
def rope_kv_kernel(
    qkv_ptr,
    scale_ptr,
    delta_ptr,
    has_adapter_ptr,
    parts_ptr,
    q_norm_ptr,
    k_norm_ptr,
    rotary_ptr,
    cache_ptr,
    positions_ptr,
    rows_ptr,
    tables_ptr,
    qkv_stride,
    max_blocks,
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SCALED: tl.constexpr,
    NORMED: tl.constexpr,
    FP8: tl.constexpr,
    PARTS: tl.constexpr,
    STARTS_EARLY: tl.constexpr,
):
    """Semantics: q[t, h] = turn(norm(qkv[t, h] * scale[t] + delta[t, h])), in place; the same for k and
    without turn and norm for v, into cache[tables[rows[t], p // B], plane, g, p % B], p = positions[t];
    nothing where p < 0.

    qkv_TN bf16 or fp32, scale_T fp32, delta_TN fp32, contiguous, or None, read where has_adapter_T is not 0,
    norms_D like qkv, rotary_P2D fp32, cache_N2HBD like qkv or e4m3, has_adapter_T, positions_T, rows_T,
    tables_RB int32. One program turns BLOCK_HEADS heads of one token.
    Source: Su et al., arXiv 2104.09864; Kwon et al., arXiv 2309.06180.
    """
    if STARTS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0)
    position = tl.load(positions_ptr + token)
    row = tl.load(rows_ptr + token)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    i = tl.arange(0, BLOCK_HALF)
    within = (head < NUM_HEADS + 2 * NUM_KV_HEADS)[:, None] & (i < HALF)[None, :]
    is_q = (head < NUM_HEADS)[:, None]
    is_v = (head >= NUM_HEADS + NUM_KV_HEADS)[:, None]

    # Where a token goes is known before the projection ends.
    there = position >= 0
    at = tl.maximum(position, 0)
    block = tl.load(tables_ptr + row.to(tl.int64) * max_blocks + at // BLOCK_SIZE, mask=there, other=0)
    rotary = rotary_ptr + at.to(tl.int64) * (4 * HALF) + i
    cos = tl.load(rotary, mask=i < HALF, other=0.0)[None, :]
    sin = tl.load(rotary + 3 * HALF, mask=i < HALF, other=0.0)[None, :]
    if delta_ptr is not None:
        has_adapter = tl.load(has_adapter_ptr + token) != 0
    if STARTS_EARLY:
        tl.extra.cuda.gdc_wait()
    x_ptr = qkv_ptr + token.to(tl.int64) * qkv_stride + head[:, None] * (2 * HALF) + i[None, :]
    line_of_heads = token.to(tl.int64) * (NUM_HEADS + 2 * NUM_KV_HEADS) + head
    in_rows = line_of_heads[:, None] * (2 * HALF) + i[None, :]
    if parts_ptr is not None:
        first = tl.load(parts_ptr + in_rows, mask=within, other=0.0)
        second = tl.load(parts_ptr + in_rows + HALF, mask=within, other=0.0)
        part_size = tl.num_programs(0) * ((NUM_HEADS + 2 * NUM_KV_HEADS) * 2 * HALF)
        for part in tl.static_range(1, PARTS):
            part_at = parts_ptr + part * part_size + in_rows
            first += tl.load(part_at, mask=within, other=0.0)
            second += tl.load(part_at + HALF, mask=within, other=0.0)
    else:
        first = tl.load(x_ptr, mask=within, other=0.0).to(tl.float32)
        second = tl.load(x_ptr + HALF, mask=within, other=0.0).to(tl.float32)
    if delta_ptr is not None:
        delta_at = delta_ptr + in_rows
        first_delta = tl.load(delta_at, mask=within & has_adapter, other=0.0)
        second_delta = tl.load(delta_at + HALF, mask=within & has_adapter, other=0.0)
    if there:
        if SCALED:
            scale = tl.load(scale_ptr + token)
            first *= scale
            second *= scale
        if delta_ptr is not None:
            first += first_delta
            second += second_delta
        turned_first, turned_second = first, second
        if NORMED:
            mean = (tl.sum(first * first, 1) + tl.sum(second * second, 1)) / (2 * HALF)
            inverse = tl.rsqrt(mean + eps)[:, None]
            q_first = tl.load(q_norm_ptr + i, mask=i < HALF, other=0.0).to(tl.float32)[None, :]
            q_second = tl.load(q_norm_ptr + HALF + i, mask=i < HALF, other=0.0).to(tl.float32)[None, :]
            k_first = tl.load(k_norm_ptr + i, mask=i < HALF, other=0.0).to(tl.float32)[None, :]
            k_second = tl.load(k_norm_ptr + HALF + i, mask=i < HALF, other=0.0).to(tl.float32)[None, :]
            turned_first = first * inverse * tl.where(is_q, q_first, k_first)
            turned_second = second * inverse * tl.where(is_q, q_second, k_second)
        out_first = tl.where(is_v, first, turned_first * cos - turned_second * sin)
        out_second = tl.where(is_v, second, turned_second * cos + turned_first * sin)

        tl.store(x_ptr, out_first.to(qkv_ptr.dtype.element_ty), mask=within & is_q)
        tl.store(x_ptr + HALF, out_second.to(qkv_ptr.dtype.element_ty), mask=within & is_q)
        if FP8:
            # A NaN stays one: minimum and maximum would make a number of it.
            out_first = tl.clamp(out_first, -E4M3_MAX, E4M3_MAX, tl.PropagateNan.ALL)
            out_second = tl.clamp(out_second, -E4M3_MAX, E4M3_MAX, tl.PropagateNan.ALL)
        # Planes and heads of a block follow one another as k and v heads do in the projection.
        line = block.to(tl.int64) * (2 * NUM_KV_HEADS) + (head - NUM_HEADS)
        slot = line * BLOCK_SIZE + position % BLOCK_SIZE
        kv_ptr = cache_ptr + slot[:, None] * (2 * HALF) + i[None, :]
        tl.store(kv_ptr, out_first.to(cache_ptr.dtype.element_ty), mask=within & (head >= NUM_HEADS)[:, None])
        tl.store(
            kv_ptr + HALF,
            out_second.to(cache_ptr.dtype.element_ty),
            mask=within & (head >= NUM_HEADS)[:, None],
        )


def launch_rope_kv(
    qkv_TN: Tensor,
    rotary_P2D: Tensor,
    cache_N2HBD: Tensor,
    where: Placement,
    num_heads: int,
    q_norm_D: Tensor | None,
    k_norm_D: Tensor | None,
    eps: float,
    scale_T: Tensor | None,
    delta: AdapterDelta | None,
    parts_PTN: Tensor | None,
) -> Tensor:
    """See `kernels.rope_kv.rope_kv`."""
    num_kv_heads, block_size, head_dim = cache_N2HBD.shape[2:]
    assert qkv_TN.stride(1) == 1, "heads of a row follow one another"
    assert where.tables_RB.is_contiguous(), "block tables are one array"
    block_half = triton.next_power_of_2(head_dim // 2)
    block_heads = max(1, PROGRAM_ELEMENTS // (2 * block_half))
    early = starts_early(qkv_TN)
    options = {"launch_pdl": True} if early else {}
    grid = (len(qkv_TN), triton.cdiv(num_heads + 2 * num_kv_heads, block_heads))
    rope_kv_kernel[grid](
        qkv_TN,
        qkv_TN if scale_T is None else scale_T,
        None if delta is None else delta.y_TN,
        None if delta is None else delta.has_adapter_T,
        parts_PTN,
        qkv_TN if q_norm_D is None else q_norm_D,
        qkv_TN if k_norm_D is None else k_norm_D,
        rotary_P2D,
        cache_N2HBD,
        where.positions_T,
        where.rows_T,
        where.tables_RB,
        qkv_TN.stride(0),
        where.tables_RB.shape[1],
        eps,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HALF=head_dim // 2,
        BLOCK_HALF=block_half,
        BLOCK_HEADS=block_heads,
        BLOCK_SIZE=block_size,
        SCALED=scale_T is not None,
        NORMED=q_norm_D is not None,
        FP8=cache_N2HBD.dtype == torch.float8_e4m3fn,
        PARTS=0 if parts_PTN is None else len(parts_PTN),
        STARTS_EARLY=early,
        num_warps=NUM_WARPS,
        **options,
    )
    return qkv_TN[:, : num_heads * head_dim].unflatten(1, (num_heads, head_dim))


def _compilation(
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    cache: str,
    normed: bool,
    early: bool = True,
    adapted: bool = False,
    num_parts: int = 0,
) -> Compilation:
    optional = {"delta_ptr": "*fp32", "has_adapter_ptr": "*i32"} if adapted else {}
    optional |= {"parts_ptr": "*fp32"} if num_parts else {}
    return Compilation(
        rope_kv_kernel,
        {
            "qkv_ptr": "*bf16",
            "scale_ptr": "*fp32",
            "q_norm_ptr": "*bf16",
            "k_norm_ptr": "*bf16",
            "rotary_ptr": "*fp32",
            "cache_ptr": f"*{cache}",
            "positions_ptr": "*i32",
            "rows_ptr": "*i32",
            "tables_ptr": "*i32",
            "qkv_stride": "i32",
            "max_blocks": "i32",
            "eps": "fp32",
        }
        | optional,
        {name: None for name in ("delta_ptr", "has_adapter_ptr", "parts_ptr") if name not in optional}
        | {
            "NUM_HEADS": num_heads,
            "NUM_KV_HEADS": num_kv_heads,
            "HALF": head_dim // 2,
            "BLOCK_HALF": triton.next_power_of_2(head_dim // 2),
            "BLOCK_HEADS": max(1, PROGRAM_ELEMENTS // (2 * triton.next_power_of_2(head_dim // 2))),
            "BLOCK_SIZE": 16,
            "SCALED": True,
            "NORMED": normed,
            "FP8": cache == "fp8e4nv",
            "PARTS": num_parts,
            "STARTS_EARLY": early,
        },
        num_warps=NUM_WARPS,
        architectures=(90, 100) if early else (80,),
    )


COMPILATIONS = [
    _compilation(32, 8, 128, "bf16", normed=False),
    _compilation(32, 8, 128, "bf16", normed=False, early=False),
    _compilation(32, 8, 128, "bf16", normed=True),
    _compilation(32, 8, 128, "bf16", normed=True, early=False),
    _compilation(32, 8, 128, "fp8e4nv", normed=False),
    _compilation(32, 8, 128, "bf16", normed=False, adapted=True),
    _compilation(32, 8, 128, "bf16", normed=False, adapted=True, num_parts=2),
    _compilation(8, 4, 32, "bf16", normed=False),
    _compilation(8, 4, 32, "bf16", normed=False, early=False),
    _compilation(8, 4, 32, "fp8e4nv", normed=True),
]
