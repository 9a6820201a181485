"""Expands decoding rows: out += shrunk B, or out = shrunk B, for all modules of a group in one launch.

The kernel handles pairs and blocks of rows; units of work, tiles of a module's columns, are taken off the
lists as in `shrink`. A module that an adapter lacks costs one read of its rank.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.lora.kernels.handover import exchange_number, take_over
from kernels.lora.kernels.slots import (
    end_after_those_before,
    fetch_ahead,
    find_columns,
    load_pair,
    load_piece,
    load_weights,
    look_up_module,
)


@triton.jit
def _expand_pair(
    out_ptr, scale_ptr, shrunk_ptr, bytes_ptr, bf16_ptr, offset, first, rows, row0, row1, rank, columns,
    begin, OUT_STRIDE: tl.constexpr, RANK_STRIDE: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
    EVEN_N: tl.constexpr, IS_E4M3: tl.constexpr, number, SIZE: tl.constexpr, PART_SIZE: tl.constexpr,
    ADDS: tl.constexpr,
):  # fmt: skip
    """One or two rows. Both sums in any case: behind a branch, all of B would stay in fp32 registers."""
    n = begin + tl.arange(0, BLOCK_N)
    valid = n < columns
    two = rows > 1
    out0_ptr = out_ptr + row0.to(tl.int64) * OUT_STRIDE + n
    out1_ptr = out_ptr + row1.to(tl.int64) * OUT_STRIDE + n
    mask0 = None if EVEN_N else valid
    if ADDS:
        old0 = tl.load(out0_ptr, mask=mask0)
        old1 = tl.load(out1_ptr, mask=two & valid, other=0.0)
    from_ptr = shrunk_ptr + first.to(tl.int64) * RANK_STRIDE
    delta0 = tl.zeros([BLOCK_N], tl.float32)
    delta1 = tl.zeros([BLOCK_N], tl.float32)
    for start in tl.range(0, rank, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        inside = r < rank
        mask = inside[:, None] if EVEN_N else inside[:, None] & valid[None, :]
        index = r[:, None] * columns + n[None, :]
        b = load_weights(bytes_ptr, bf16_ptr, offset, index, mask, IS_E4M3, tl.float32)
        shrunk0 = take_over(from_ptr + r, inside, number, SIZE, PART_SIZE)
        shrunk1 = take_over(from_ptr + RANK_STRIDE + r, inside & two, number, SIZE, PART_SIZE)
        delta0 += tl.sum(b * shrunk0[:, None], 0)
        delta1 += tl.sum(b * shrunk1[:, None], 0)
    if scale_ptr is not None:
        delta0 *= 1.0 / tl.load(scale_ptr + row0)
        delta1 *= 1.0 / tl.load(scale_ptr + row1)
    if ADDS:
        delta0 += old0.to(tl.float32)
        delta1 += old1.to(tl.float32)
    tl.store(out0_ptr, delta0.to(out_ptr.dtype.element_ty), mask=mask0)
    if two:
        tl.store(out1_ptr, delta1.to(out_ptr.dtype.element_ty), mask=mask0)


@triton.jit
def expand_block(
    out_ptr, scale_ptr, shrunk_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows, rank, columns, begin,
    OUT_STRIDE: tl.constexpr, RANK_STRIDE: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr, STRETCH: tl.constexpr, EVEN_N: tl.constexpr, IS_E4M3: tl.constexpr,
    COMPUTE: tl.constexpr, number=0, SIZE: tl.constexpr = 0, PART_SIZE: tl.constexpr = 0,
    ADDS: tl.constexpr = True,
):  # fmt: skip
    """Up to BLOCK_ROWS rows of a slot and STRETCH tiles of BLOCK_N columns on the tensor cores."""
    m = tl.arange(0, BLOCK_ROWS)
    live = m < rows
    row = tl.load(order_ptr + first + m, mask=live, other=0).to(tl.int64)
    inverse = tl.full([BLOCK_ROWS], 1.0, tl.float32)
    if scale_ptr is not None:
        inverse = 1.0 / tl.load(scale_ptr + row, mask=live, other=1.0)
    from_ptr = shrunk_ptr + (first + m).to(tl.int64)[:, None] * RANK_STRIDE
    for start_n in tl.range(begin, tl.minimum(begin + STRETCH * BLOCK_N, columns), BLOCK_N):
        n = start_n + tl.arange(0, BLOCK_N)
        valid = n < columns
        out_at = out_ptr + row[:, None] * OUT_STRIDE + n[None, :]
        out_mask = live[:, None] if EVEN_N else live[:, None] & valid[None, :]
        if ADDS:
            old = tl.load(out_at, mask=out_mask, other=0.0)
        delta = tl.zeros([BLOCK_ROWS, BLOCK_N], tl.float32)
        for start in tl.range(0, rank, BLOCK_R, num_stages=1):
            r = start + tl.arange(0, BLOCK_R)
            inside = r < rank
            mask = inside[:, None] if EVEN_N else inside[:, None] & valid[None, :]
            index = r[:, None] * columns + n[None, :]
            b = load_weights(bytes_ptr, bf16_ptr, offset, index, mask, IS_E4M3, COMPUTE)
            there = live[:, None] & inside[None, :]
            shrunk = take_over(from_ptr + r[None, :], there, number, SIZE, PART_SIZE)
            delta = tl.dot(shrunk.to(COMPUTE), b, delta)
        delta *= inverse[:, None]
        if ADDS:
            delta += old.to(tl.float32)
        tl.store(out_at, delta.to(out_ptr.dtype.element_ty), mask=out_mask)


@triton.jit(do_not_specialize=["place", "num_slots"])
def expand_rows(
    out_ptr, scale_ptr, shrunk_ptr, bytes_ptr, bf16_ptr, offsets_ptr, ranks_ptr, counts_ptr, pairs_ptr,
    blocks_ptr, order_ptr, place, num_slots, number_ptr,
    OUT_STRIDE: tl.constexpr, N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, ALIGN: tl.constexpr,
    RANK_STRIDE: tl.constexpr, PAIR_R: tl.constexpr, PAIR_N: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr, STRETCH: tl.constexpr, BLOCK_ROWS: tl.constexpr, FETCHES: tl.constexpr,
    WITH_BLOCKS: tl.constexpr, SIZE: tl.constexpr, PART_SIZE: tl.constexpr, APART: tl.constexpr,
    WITH_E4M3: tl.constexpr, COMPUTE: tl.constexpr, STARTS_EARLY: tl.constexpr,
):  # fmt: skip
    """Semantics: out[order[p], n] += sum over r of shrunk[p, r] * B[slot][r, n] / (scale[order[p]] or 1), r
        running over the ranks of n's module; APART = instead of +=.

    Args:
        out_ptr: [T, N0 + N1 + N2], rows OUT_STRIDE apart; the modules' columns side by side.
        scale_ptr: fp32 [T] or None. shrunk_ptr: fp32 [places, RANK_STRIDE]; with words those of SIZE ranks,
            int64 [SIZE, PART_SIZE], and number_ptr int32 (`kernels.lora.mailbox`).
        bytes_ptr, bf16_ptr: the arena, twice. The rest as in `shrink_rows`.
        ALIGN: a power of two that divides N0, N1 and N2.
        PAIR_R, PAIR_N, BLOCK_R, BLOCK_N: ranks and columns at a time, of pairs and of blocks.
        STRETCH: tiles of BLOCK_N columns in a unit of a block.
        FETCHES: whether weights are asked for before the launch before this one ends; PAIR_N divides all N.
        WITH_BLOCKS: whether there may be blocks.
        APART: whether out is memory of its own, of which all columns of a row with an adapter are written; of
            the launches before, only the shrink that sends the words is waited for.

    Grid: any number of programs. Source: Chen et al., "Punica", arXiv 2310.18547.
    """
    PAIR_TILES: tl.constexpr = (
        (N0 + PAIR_N - 1) // PAIR_N + (N1 + PAIR_N - 1) // PAIR_N + (N2 + PAIR_N - 1) // PAIR_N
    )
    WIDE: tl.constexpr = STRETCH * BLOCK_N
    TILES: tl.constexpr = (N0 + WIDE - 1) // WIDE + (N1 + WIDE - 1) // WIDE + (N2 + WIDE - 1) // WIDE
    EVEN_PAIRS: tl.constexpr = (N0 % PAIR_N == 0) and (N1 % PAIR_N == 0) and (N2 % PAIR_N == 0)
    EVEN_BLOCKS: tl.constexpr = (N0 % WIDE == 0) and (N1 % WIDE == 0) and (N2 % WIDE == 0)
    program, programs = tl.program_id(0), tl.num_programs(0)
    pair_units = tl.load(counts_ptr) * PAIR_TILES
    if STARTS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    if FETCHES and program < pair_units:
        slot, first, rows, row0, row1 = load_pair(pairs_ptr, program // PAIR_TILES)
        module, tile, columns, start = find_columns(program % PAIR_TILES, N0, N1, N2, PAIR_N, ALIGN)
        offset, rank_start, rank, e4m3 = look_up_module(
            offsets_ptr, ranks_ptr, place * num_slots + slot, module
        )
        size = 2 - e4m3
        for r in tl.range(0, rank):
            fetch_ahead(bytes_ptr + offset + (r * columns + tile * PAIR_N) * size, PAIR_N * size)
    if STARTS_EARLY and not APART:
        tl.extra.cuda.gdc_wait()
    number = exchange_number(number_ptr, SIZE)
    for unit in tl.range(program, pair_units, programs):
        slot, first, rows, row0, row1 = load_pair(pairs_ptr, unit // PAIR_TILES)
        module, tile, columns, start = find_columns(unit % PAIR_TILES, N0, N1, N2, PAIR_N, ALIGN)
        offset, rank_start, rank, e4m3 = look_up_module(
            offsets_ptr, ranks_ptr, place * num_slots + slot, module
        )
        if (rank > 0) | APART:
            if e4m3 == 0:
                _expand_pair(
                    out_ptr + start, scale_ptr, shrunk_ptr + rank_start, bytes_ptr, bf16_ptr, offset, first,
                    rows, row0, row1, rank, columns, tile * PAIR_N, OUT_STRIDE, RANK_STRIDE, PAIR_R, PAIR_N,
                    EVEN_PAIRS, False, number, SIZE, PART_SIZE, not APART,
                )  # fmt: skip
            elif WITH_E4M3:
                _expand_pair(
                    out_ptr + start, scale_ptr, shrunk_ptr + rank_start, bytes_ptr, bf16_ptr, offset, first,
                    rows, row0, row1, rank, columns, tile * PAIR_N, OUT_STRIDE, RANK_STRIDE, PAIR_R, PAIR_N,
                    EVEN_PAIRS, True, number, SIZE, PART_SIZE, not APART,
                )  # fmt: skip
    if WITH_BLOCKS:
        block_units = tl.load(counts_ptr + 1) * TILES
        for unit in tl.range((program + programs - pair_units % programs) % programs, block_units, programs):
            slot, first, rows = load_piece(blocks_ptr, unit // TILES)
            module, tile, columns, start = find_columns(unit % TILES, N0, N1, N2, WIDE, ALIGN)
            offset, rank_start, rank, e4m3 = look_up_module(
                offsets_ptr, ranks_ptr, place * num_slots + slot, module
            )
            if (rank > 0) | APART:
                if e4m3 == 0:
                    expand_block(
                        out_ptr + start, scale_ptr, shrunk_ptr + rank_start, bytes_ptr, bf16_ptr, order_ptr,
                        offset, first, rows, rank, columns, tile * WIDE, OUT_STRIDE, RANK_STRIDE, BLOCK_ROWS,
                        BLOCK_R, BLOCK_N, STRETCH, EVEN_BLOCKS, False, COMPUTE, number, SIZE, PART_SIZE,
                        not APART,
                    )  # fmt: skip
                elif WITH_E4M3:
                    expand_block(
                        out_ptr + start, scale_ptr, shrunk_ptr + rank_start, bytes_ptr, bf16_ptr, order_ptr,
                        offset, first, rows, rank, columns, tile * WIDE, OUT_STRIDE, RANK_STRIDE, BLOCK_ROWS,
                        BLOCK_R, BLOCK_N, STRETCH, EVEN_BLOCKS, True, COMPUTE, number, SIZE, PART_SIZE,
                        not APART,
                    )  # fmt: skip
    if STARTS_EARLY and APART:
        end_after_those_before(program)
