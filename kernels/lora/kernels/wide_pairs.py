"""Shrinks pairs whose inputs are wide: x A^T on tensor cores, ranks on their long side.

The kernel handles slots with one or two rows where rows of A are too long for the registers of many programs
at once: `shrink_rows` would leave most of a multiprocessor idle. A unit of work is a chunk of K, for a warp;
the warp that finishes a pair's last chunk adds them up.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.lora.kernels.handover import exchange_number
from kernels.lora.kernels.slots import add_up_chunks, load_pair, load_weights, look_up

COLUMNS = tl.constexpr(8)
"""Of the smallest product: rows of x, of which one or two are there."""


@triton.jit
def _shrink_chunk(
    x_ptr, partials_ptr, bytes_ptr, bf16_ptr, offset, first, rows, row0, row1, rank, chunk,
    K: tl.constexpr, X_STRIDE: tl.constexpr, CHUNK: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr, ROW_STRIDE: tl.constexpr, IS_E4M3: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    m = tl.arange(0, COLUMNS)
    x_row = tl.where(m == 0, row0, row1).to(tl.int64) * X_STRIDE
    for start in tl.range(0, rank, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        inside = r < rank
        shrunk = tl.zeros([BLOCK_R, COLUMNS], tl.float32)
        for done in tl.range(0, CHUNK, BLOCK_K):
            k = chunk * CHUNK + done + tl.arange(0, BLOCK_K)
            x_mask, a_mask = (m < rows)[None, :], inside[:, None]
            if K % CHUNK != 0:
                x_mask, a_mask = x_mask & (k < K)[:, None], a_mask & (k < K)[None, :]
            x = tl.load(x_ptr + x_row[None, :] + k[:, None], mask=x_mask, other=0.0).to(COMPUTE)
            index = r[:, None] * K + k[None, :]
            a = load_weights(bytes_ptr, bf16_ptr, offset, index, a_mask, IS_E4M3, COMPUTE)
            shrunk = tl.dot(a, x, shrunk)
        at = partials_ptr + (first + m).to(tl.int64)[None, :] * ROW_STRIDE + r[:, None]
        tl.store(at, shrunk, mask=(m < rows)[None, :] & inside[:, None])


@triton.jit(do_not_specialize=["place", "num_slots"])
def shrink_wide_pairs(
    x_ptr, shrunk_ptr, partials_ptr, counters_ptr, bytes_ptr, bf16_ptr, fp32_ptr, offsets_ptr, ranks_ptr,
    counts_ptr, pairs_ptr, place, num_slots, number_ptr,
    K: tl.constexpr, X_STRIDE: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    RANK_STRIDE: tl.constexpr, PAIR_ROWS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
    SIZE: tl.constexpr, WITH_E4M3: tl.constexpr, COMPUTE: tl.constexpr, STARTS_EARLY: tl.constexpr,
):  # fmt: skip
    """Semantics: as `shrink_rows`, of pairs.

    Args: as `shrink_rows`; counters_ptr: int32 [pairs], zeros. PAIR_ROWS: most rows of a pair.

    Grid: any number of programs.
    """
    if STARTS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    number = exchange_number(number_ptr, SIZE)
    for unit in tl.range(tl.program_id(0), tl.load(counts_ptr) * CHUNKS, tl.num_programs(0)):
        pair, chunk = unit // CHUNKS, unit % CHUNKS
        slot, first, rows, row0, row1 = load_pair(pairs_ptr, pair)
        offset, factors, rank, e4m3 = look_up(offsets_ptr, ranks_ptr, place * num_slots + slot)
        sums_ptr = partials_ptr + chunk * RANK_STRIDE
        if e4m3 == 0:
            _shrink_chunk(
                x_ptr, sums_ptr, bytes_ptr, bf16_ptr, offset, first, rows, row0, row1, rank, chunk,
                K, X_STRIDE, CHUNK, BLOCK_R, BLOCK_K, CHUNKS * RANK_STRIDE, False, COMPUTE,
            )  # fmt: skip
        elif WITH_E4M3:
            _shrink_chunk(
                x_ptr, sums_ptr, bytes_ptr, bf16_ptr, offset, first, rows, row0, row1, rank, chunk,
                K, X_STRIDE, CHUNK, BLOCK_R, BLOCK_K, CHUNKS * RANK_STRIDE, True, COMPUTE,
            )  # fmt: skip
        add_up_chunks(
            partials_ptr, shrunk_ptr, fp32_ptr + factors, counters_ptr + pair, first, rows, rank,
            CHUNKS, 16, PAIR_ROWS, RANK_STRIDE, number, SIZE,
        )  # fmt: skip
