"""Computes LoRA for prefill chunks: tiles of up to 64 rows of one slot on tensor cores.

The kernels handle slots with more rows than an item has. They are launched in large buckets only, beside
those for items, over a list of their own. What counts here is x and the outputs, read and written once; a
tile's weights come from the L2 cache.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.lora.kernels.expand import expand_block
from kernels.lora.kernels.slots import (
    add_up_chunks,
    find_columns,
    load_piece,
    load_weights,
    look_up,
    look_up_module,
)


@triton.jit
def _shrink_tile(
    x_ptr, partials_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows, rank, begin,
    K: tl.constexpr, X_STRIDE: tl.constexpr, SPAN: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
    ROW_STRIDE: tl.constexpr, IS_E4M3: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    m = tl.arange(0, BLOCK_M)
    valid = m < rows
    row = tl.load(order_ptr + first + m, mask=valid, other=0).to(tl.int64)
    for start in tl.range(0, rank, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        inside = r < rank
        shrunk = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
        for done in tl.range(0, SPAN, BLOCK_K):
            k = begin + done + tl.arange(0, BLOCK_K)
            x_mask, a_mask = valid[:, None], inside[None, :]
            if K % SPAN != 0 or SPAN % BLOCK_K != 0:
                x_mask, a_mask = x_mask & (k < K)[None, :], a_mask & (k < K)[:, None]
            x = tl.load(x_ptr + row[:, None] * X_STRIDE + k[None, :], mask=x_mask, other=0.0).to(COMPUTE)
            a = load_weights(
                bytes_ptr, bf16_ptr, offset, r[None, :] * K + k[:, None], a_mask, IS_E4M3, COMPUTE
            )
            shrunk = tl.dot(x, a, shrunk)
        at = partials_ptr + (first + m).to(tl.int64)[:, None] * ROW_STRIDE + r[None, :]
        tl.store(at, shrunk, mask=valid[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["place", "num_slots"])
def shrink_tiles(
    x_ptr, shrunk_ptr, partials_ptr, counters_ptr, bytes_ptr, bf16_ptr, fp32_ptr, offsets_ptr, ranks_ptr,
    counts_ptr, tiles_ptr, order_ptr, place, num_slots,
    K: tl.constexpr, X_STRIDE: tl.constexpr, SPLITS: tl.constexpr, SPAN: tl.constexpr,
    RANK_STRIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, WITH_E4M3: tl.constexpr,
    COMPUTE: tl.constexpr, STARTS_EARLY: tl.constexpr,
):  # fmt: skip
    """Semantics: as `shrink_rows`.

    Args: as `shrink_rows`; tiles of up to BLOCK_M rows in place of items, SPLITS spans of SPAN columns.

    Grid: (most tiles of the bucket, SPLITS).
    """
    if STARTS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    tile, split = tl.program_id(0), tl.program_id(1)
    if tile < tl.load(counts_ptr + 2):
        slot, first, rows = load_piece(tiles_ptr, tile)
        offset, factors, rank, e4m3 = look_up(offsets_ptr, ranks_ptr, place * num_slots + slot)
        sums_ptr = partials_ptr + split * RANK_STRIDE
        if e4m3 == 0:
            _shrink_tile(
                x_ptr, sums_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows, rank, split * SPAN,
                K, X_STRIDE, SPAN, BLOCK_M, BLOCK_R, BLOCK_K, SPLITS * RANK_STRIDE, False, COMPUTE,
            )  # fmt: skip
        elif WITH_E4M3:
            _shrink_tile(
                x_ptr, sums_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows, rank, split * SPAN,
                K, X_STRIDE, SPAN, BLOCK_M, BLOCK_R, BLOCK_K, SPLITS * RANK_STRIDE, True, COMPUTE,
            )  # fmt: skip
        add_up_chunks(
            partials_ptr, shrunk_ptr, fp32_ptr + factors, counters_ptr + tile, first, rows, rank,
            SPLITS, 16, BLOCK_M, RANK_STRIDE,
        )  # fmt: skip


@triton.jit(do_not_specialize=["place", "num_slots"])
def expand_tiles(
    out_ptr, scale_ptr, shrunk_ptr, bytes_ptr, bf16_ptr, offsets_ptr, ranks_ptr, counts_ptr, tiles_ptr,
    order_ptr, place, num_slots,
    OUT_STRIDE: tl.constexpr, N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, BLOCK_N: tl.constexpr,
    STRETCH: tl.constexpr, ALIGN: tl.constexpr, RANK_STRIDE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr, WITH_E4M3: tl.constexpr, COMPUTE: tl.constexpr, STARTS_EARLY: tl.constexpr,
):  # fmt: skip
    """Semantics: as `expand_rows`.

    Args: as `expand_rows`, with tiles of up to BLOCK_M rows.

    Grid: any number of programs. A program for every possible tile would be mostly programs that find nothing
    to do, and those are not free.
    """
    WIDE: tl.constexpr = STRETCH * BLOCK_N
    TILES: tl.constexpr = (N0 + WIDE - 1) // WIDE + (N1 + WIDE - 1) // WIDE + (N2 + WIDE - 1) // WIDE
    EVEN_N: tl.constexpr = (N0 % WIDE == 0) and (N1 % WIDE == 0) and (N2 % WIDE == 0)
    if STARTS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    for unit in tl.range(tl.program_id(0), tl.load(counts_ptr + 2) * TILES, tl.num_programs(0)):
        slot, first, rows = load_piece(tiles_ptr, unit // TILES)
        module, tile, columns, start = find_columns(unit % TILES, N0, N1, N2, WIDE, ALIGN)
        offset, rank_start, rank, e4m3 = look_up_module(
            offsets_ptr, ranks_ptr, place * num_slots + slot, module
        )
        if rank > 0:
            if e4m3 == 0:
                expand_block(
                    out_ptr + start, scale_ptr, shrunk_ptr + rank_start, bytes_ptr, bf16_ptr, order_ptr,
                    offset, first, rows, rank, columns, tile * WIDE, OUT_STRIDE, RANK_STRIDE, BLOCK_M,
                    BLOCK_R, BLOCK_N, STRETCH, EVEN_N, False, COMPUTE,
                )  # fmt: skip
            elif WITH_E4M3:
                expand_block(
                    out_ptr + start, scale_ptr, shrunk_ptr + rank_start, bytes_ptr, bf16_ptr, order_ptr,
                    offset, first, rows, rank, columns, tile * WIDE, OUT_STRIDE, RANK_STRIDE, BLOCK_M,
                    BLOCK_R, BLOCK_N, STRETCH, EVEN_N, True, COMPUTE,
                )  # fmt: skip
