"""Shrinks decoding rows: x A^T over lists of work.

The kernel handles pairs (one or two rows of a slot, summed by the vector units) and blocks (up to 16 rows, on
tensor cores). A program takes units of work off the lists in turn, so that a launch costs what is on them and
a captured grid serves any mix of adapters. A unit of a pair is some rows of A, whole: nothing is left to add
up. A unit of a block is a chunk of K: with all rows of A at once, x is read once. Weights are bf16 or e4m3,
adapter by adapter.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.lora.kernels.handover import exchange_number, hand_over
from kernels.lora.kernels.slots import (
    add_up_chunks,
    end_after_those_before,
    fetch_ahead,
    load_pair,
    load_piece,
    load_weights,
    look_up,
)


@triton.jit
def _add_both(a0, a1, b0, b1):
    return a0 + b0, a1 + b1


@triton.jit
def _shrink_pair(
    x_ptr, shrunk_ptr, bytes_ptr, bf16_ptr, factors_ptr, offset, first, rows, row0, row1, rank, part, parts,
    K: tl.constexpr, X_STRIDE: tl.constexpr, STEP: tl.constexpr, AHEAD: tl.constexpr,
    RANK_STRIDE: tl.constexpr, IS_E4M3: tl.constexpr, TOGETHER: tl.constexpr, number, SIZE: tl.constexpr,
):  # fmt: skip
    """Every `parts`-th row of A, or TOGETHER of them, times one or two rows of x."""
    STEPS: tl.constexpr = (K + STEP - 1) // STEP
    x0_ptr = x_ptr + row0.to(tl.int64) * X_STRIDE
    x1_ptr = x_ptr + row1.to(tl.int64) * X_STRIDE
    at = first.to(tl.int64) * RANK_STRIDE
    two = rows > 1
    if TOGETHER > 1:
        k = tl.arange(0, STEP)
        x0 = tl.load(x0_ptr + k, mask=k < K, other=0.0).to(tl.float32)
        x1 = tl.load(x1_ptr + k, mask=two & (k < K), other=0.0).to(tl.float32)
        for start in tl.range(part * TOGETHER, rank, parts * TOGETHER, num_stages=1):
            r = start + tl.arange(0, TOGETHER)
            inside = r < rank
            mask = inside[:, None] if K == STEP else inside[:, None] & (k < K)[None, :]
            index = r[:, None] * K + k[None, :]
            a = load_weights(bytes_ptr, bf16_ptr, offset, index, mask, IS_E4M3, tl.float32)
            sums0, sums1 = tl.reduce((a * x0[None, :], a * x1[None, :]), 1, _add_both)
            factor = tl.load(factors_ptr + r, mask=inside, other=0.0)
            hand_over(shrunk_ptr, number, at + r, sums0 * factor, inside, SIZE)
            hand_over(shrunk_ptr, number, at + RANK_STRIDE + r, sums1 * factor, inside & two, SIZE)
    elif STEPS == 1:
        k = tl.arange(0, STEP)
        x0 = tl.load(x0_ptr + k, mask=k < K, other=0.0)
        x1 = tl.load(x1_ptr + k, mask=two & (k < K), other=0.0)
        for r in tl.range(part, rank, parts, num_stages=AHEAD):
            a = load_weights(bytes_ptr, bf16_ptr, offset, r * K + k, k < K, IS_E4M3, tl.float32)
            sum0, sum1 = tl.reduce((a * x0.to(tl.float32), a * x1.to(tl.float32)), 0, _add_both)
            if rows > 0:  # always; without it a factor would travel through shared memory, as A does
                factor = tl.load(factors_ptr + r)
                hand_over(shrunk_ptr, number, at + r, sum0 * factor, None, SIZE)
                hand_over(shrunk_ptr, number, at + RANK_STRIDE + r, sum1 * factor, two, SIZE)
    else:
        sums0 = tl.zeros([STEP], tl.float32)
        sums1 = tl.zeros([STEP], tl.float32)
        for step in tl.range(0, (rank - part + parts - 1) // parts * STEPS, num_stages=AHEAD):
            r = part + step // STEPS * parts
            k = step % STEPS * STEP + tl.arange(0, STEP)
            x0 = tl.load(x0_ptr + k, mask=k < K, other=0.0)
            x1 = tl.load(x1_ptr + k, mask=two & (k < K), other=0.0)
            a = load_weights(bytes_ptr, bf16_ptr, offset, r * K + k, k < K, IS_E4M3, tl.float32)
            begins = step % STEPS == 0
            sums0 = tl.where(begins, 0.0, sums0) + a * x0.to(tl.float32)
            sums1 = tl.where(begins, 0.0, sums1) + a * x1.to(tl.float32)
            if step % STEPS == STEPS - 1:
                sum0, sum1 = tl.reduce((sums0, sums1), 0, _add_both)
                factor = tl.load(factors_ptr + r)
                hand_over(shrunk_ptr, number, at + r, sum0 * factor, None, SIZE)
                hand_over(shrunk_ptr, number, at + RANK_STRIDE + r, sum1 * factor, two, SIZE)


@triton.jit
def _shrink_block(
    x_ptr, partials_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows, rank, chunk,
    K: tl.constexpr, X_STRIDE: tl.constexpr, CHUNK: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_ROWS: tl.constexpr, ROW_STRIDE: tl.constexpr, IS_E4M3: tl.constexpr,
    COMPUTE: tl.constexpr,
):  # fmt: skip
    m = tl.arange(0, BLOCK_ROWS)
    valid = m < rows
    row = tl.load(order_ptr + first + m, mask=valid, other=0).to(tl.int64)
    for start in tl.range(0, rank, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        inside = r < rank
        shrunk = tl.zeros([BLOCK_ROWS, BLOCK_R], tl.float32)
        for done in tl.range(0, CHUNK, BLOCK_K):
            k = chunk * CHUNK + done + tl.arange(0, BLOCK_K)
            x_mask, a_mask = valid[:, None], inside[None, :]
            if K % CHUNK != 0:
                x_mask, a_mask = x_mask & (k < K)[None, :], a_mask & (k < K)[:, None]
            x = tl.load(x_ptr + row[:, None] * X_STRIDE + k[None, :], mask=x_mask, other=0.0).to(COMPUTE)
            index = r[None, :] * K + k[:, None]
            a = load_weights(bytes_ptr, bf16_ptr, offset, index, a_mask, IS_E4M3, COMPUTE)
            shrunk = tl.dot(x, a, shrunk)
        place = (first + m).to(tl.int64) * ROW_STRIDE
        tl.store(partials_ptr + place[:, None] + r[None, :], shrunk, mask=valid[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["place", "num_slots"])
def shrink_rows(
    x_ptr, shrunk_ptr, partials_ptr, counters_ptr, bytes_ptr, bf16_ptr, fp32_ptr, offsets_ptr, ranks_ptr,
    counts_ptr, pairs_ptr, blocks_ptr, order_ptr, place, num_slots, number_ptr,
    K: tl.constexpr, X_STRIDE: tl.constexpr, RANK_STRIDE: tl.constexpr, MAX_PARTS: tl.constexpr,
    STEP: tl.constexpr, AHEAD: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_ROWS: tl.constexpr, FETCHES: tl.constexpr,
    WITH_PAIRS: tl.constexpr, WITH_BLOCKS: tl.constexpr, TOGETHER: tl.constexpr, SIZE: tl.constexpr,
    APART: tl.constexpr, WITH_E4M3: tl.constexpr, COMPUTE: tl.constexpr, STARTS_EARLY: tl.constexpr,
):  # fmt: skip
    """Semantics: shrunk[p, r] = f[slot][r] * sum over k of x[order[p], k] * A[slot][r, k].

    Args:
        x_ptr: [T, K], rows X_STRIDE apart. shrunk_ptr: fp32 [places, RANK_STRIDE]; with words int64 [SIZE],
            where each rank reads its words, and number_ptr int32 (`kernels.lora.mailbox`).
        partials_ptr: fp32 [places, CHUNKS, RANK_STRIDE]. counters_ptr: int32 [blocks], zeros.
        bytes_ptr, bf16_ptr, fp32_ptr: the arena, thrice.
        offsets_ptr, ranks_ptr: AdapterTable; `place` is layer * G + group.
        counts_ptr, pairs_ptr, blocks_ptr, order_ptr: DeviceWork.
        MAX_PARTS: units of a pair at most; they are as many as there are programs for. However many, a row of
            A is summed by one program.
        STEP: columns at a time. AHEAD: one more than there are such stretches on their way.
        TOGETHER: rows of A at a time; more than one needs a STEP of at least K, and no shared memory.
        CHUNK, CHUNKS: of K; a block's units. BLOCK_R, BLOCK_K: of one product.
        WITH_PAIRS: whether this launch works off pairs too, or `shrink_wide_pairs` does.
        WITH_BLOCKS: whether there may be blocks.
        FETCHES: whether weights are asked for before the launch before this one ends; K is a multiple of 16.
        APART: whether x was there when the launch before let this one begin, so that nothing is waited for.

    Grid: any number of programs. Source: Chen et al., "Punica", arXiv 2310.18547.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    num_pairs = tl.load(counts_ptr)
    parts = tl.minimum(tl.maximum(programs // tl.maximum(num_pairs, 1), 1), MAX_PARTS)
    pair_units = num_pairs * parts
    if STARTS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    if WITH_PAIRS and FETCHES and program < pair_units:
        slot, first, rows, row0, row1 = load_pair(pairs_ptr, program // parts)
        offset, factors, rank, e4m3 = look_up(offsets_ptr, ranks_ptr, place * num_slots + slot)
        row_bytes = K * (2 - e4m3)
        if program % parts < rank:
            fetch_ahead(bytes_ptr + offset + program % parts * row_bytes, row_bytes)
    if STARTS_EARLY and not APART:
        tl.extra.cuda.gdc_wait()
    number = exchange_number(number_ptr, SIZE)
    if WITH_PAIRS:
        # Nothing of a slot is carried from unit to unit. A pass of Triton 3.6 and 3.7 drops what a loop
        # carries if its only use is as the bound of an inner loop: all units would have the first one's rank.
        for unit in tl.range(program, pair_units, programs):
            slot, first, rows, row0, row1 = load_pair(pairs_ptr, unit // parts)
            offset, factors, rank, e4m3 = look_up(offsets_ptr, ranks_ptr, place * num_slots + slot)
            if e4m3 == 0:
                _shrink_pair(
                    x_ptr, shrunk_ptr, bytes_ptr, bf16_ptr, fp32_ptr + factors, offset, first, rows, row0,
                    row1, rank, unit % parts, parts, K, X_STRIDE, STEP, AHEAD, RANK_STRIDE, False,
                    TOGETHER, number, SIZE,
                )  # fmt: skip
            elif WITH_E4M3:
                _shrink_pair(
                    x_ptr, shrunk_ptr, bytes_ptr, bf16_ptr, fp32_ptr + factors, offset, first, rows, row0,
                    row1, rank, unit % parts, parts, K, X_STRIDE, STEP, AHEAD, RANK_STRIDE, True,
                    TOGETHER, number, SIZE,
                )  # fmt: skip
            # The next unit's weights may be of the other type, and lie in shared memory where sums are now.
            tl.debug_barrier()
    if WITH_BLOCKS:
        block_units = tl.load(counts_ptr + 1) * CHUNKS
        # They begin where pairs ended, so that no program gets more than its share of both.
        begin = (program + programs - pair_units % programs) % programs if WITH_PAIRS else program
        for unit in tl.range(begin, block_units, programs):
            slot, first, rows = load_piece(blocks_ptr, unit // CHUNKS)
            offset, factors, rank, e4m3 = look_up(offsets_ptr, ranks_ptr, place * num_slots + slot)
            sums_ptr = partials_ptr + unit % CHUNKS * RANK_STRIDE
            if e4m3 == 0:
                _shrink_block(
                    x_ptr, sums_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows, rank, unit % CHUNKS,
                    K, X_STRIDE, CHUNK, BLOCK_R, BLOCK_K, BLOCK_ROWS, CHUNKS * RANK_STRIDE, False, COMPUTE,
                )  # fmt: skip
            elif WITH_E4M3:
                _shrink_block(
                    x_ptr, sums_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows, rank, unit % CHUNKS,
                    K, X_STRIDE, CHUNK, BLOCK_R, BLOCK_K, BLOCK_ROWS, CHUNKS * RANK_STRIDE, True, COMPUTE,
                )  # fmt: skip
            add_up_chunks(
                partials_ptr, shrunk_ptr, fp32_ptr + factors, counters_ptr + unit // CHUNKS, first, rows,
                rank, CHUNKS, 16, BLOCK_ROWS, RANK_STRIDE, number, SIZE,
            )  # fmt: skip
    if STARTS_EARLY and APART:
        end_after_those_before(program)
