"""Computes attention of sequences with one query each: the keys of a sequence are split over programs.

Items and sequences are read from the plan (`device_plan.py`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention.kernels.block import attend_block, load_blocks

COMBINED_SPLITS = tl.constexpr(8)
"""Shares added at a time: their loads are in flight together. 32 registers a thread at 4 heads of 128."""


@triton.jit
def combine_splits(
    partials_ptr,
    stats_ptr,
    out_ptr,
    first_share,
    num_splits,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_GROUP: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
):
    """Semantics: with m_j, l_j, a_j what split j left of each head of a group, and w_j = 2^(m_j - max_j m_j):
    out = sum_j w_j a_j / sum_j w_j l_j, added up from j = 0.

    Other programs have just written them: read past the first cache, which would not know.
    """
    g = tl.arange(0, BLOCK_GROUP)
    d = tl.arange(0, BLOCK_D)
    j = tl.arange(0, BLOCK_SPLITS)
    own = g < GROUP
    # A split that is not there has a maximum of -inf, so it weighs nothing.
    stats = stats_ptr + (first_share + (j * NUM_HEADS)[:, None] + g[None, :]) * 2
    there = (j < num_splits)[:, None] & own[None, :]
    maxima = tl.load(stats, mask=there, other=float("-inf"), cache_modifier=".cg")
    sums = tl.load(stats + 1, mask=there, other=0.0, cache_modifier=".cg")
    highest = tl.where(own, tl.max(maxima, 0), 0.0)
    weight_sum = tl.where(own, tl.sum(sums * tl.exp2(maxima - highest[None, :]), 0), 1.0)
    mixed = tl.zeros([BLOCK_GROUP, BLOCK_D], tl.float32)
    for first_j in range(0, num_splits, COMBINED_SPLITS):
        some_j = first_j + tl.arange(0, COMBINED_SPLITS)
        some_there = (some_j < num_splits)[:, None] & own[None, :]
        share = first_share + (some_j * NUM_HEADS)[:, None] + g[None, :]
        some_maxima = tl.load(
            stats_ptr + share * 2, mask=some_there, other=float("-inf"), cache_modifier=".cg"
        )
        parts = tl.load(
            partials_ptr + share[:, :, None] * HEAD_DIM + d[None, None, :],
            mask=some_there[:, :, None] & (d < HEAD_DIM)[None, None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        mixed += tl.sum(parts * tl.exp2(some_maxima - highest[None, :])[:, :, None], 0)
    result = mixed / weight_sum[:, None]
    out_offset = g[:, None] * HEAD_DIM + d[None, :]
    tl.store(
        out_ptr + out_offset, result.to(out_ptr.dtype.element_ty), mask=own[:, None] & (d < HEAD_DIM)[None, :]
    )


@triton.jit
def load_item(items_ptr, index):
    """The four words of an item."""
    item_ptr = items_ptr + index * 4
    return tl.load(item_ptr), tl.load(item_ptr + 1), tl.load(item_ptr + 2), tl.load(item_ptr + 3)


@triton.jit
def decode_kernel(
    q_ptr,
    cache_ptr,
    tables_ptr,
    counts_ptr,
    items_ptr,
    partials_ptr,
    stats_ptr,
    arrivals_ptr,
    out_ptr,
    scale_log2,
    q_stride,
    out_stride,
    max_blocks,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    PRODUCT: tl.constexpr,
    STAGES: tl.constexpr,
    STARTS_EARLY: tl.constexpr,
):
    """Semantics: out[t, h] = sum_p softmax_p(q[t, h] . K[s, p, g] * scale) V[s, p, g] for p < total_len[s].

    Item i is (token, row of the tables, keys, sequence, split j of how many). A program takes an item and a
    KV head g with the GROUP query heads that share it, so that keys and values are read once. A sequence of
    one split is done then. Of several, each leaves its share (sum of weighted values, maximum and sum of
    weights) and the last to arrive adds the shares up in the order of the splits. `arrivals` is zero before
    and after.

    q_THD bf16, cache_N2HBD bf16 or e4m3, tables_RB, counts_3 (the first), items_I4 (token + (row << 16),
    first key, key after the last, sequence + (j << 16) + (splits << 24)), arrivals [S, Hkv] int32, partials
    [I, Hq, D] and stats [I, Hq, 2] fp32, out [T, Hq * D] bf16. Products in PRODUCT: bf16, or fp16 for e4m3,
    which it holds exactly.
    Source: Dao et al., Flash-Decoding; Milakov and Gimelshein, arXiv 1805.02867.
    """
    m_rows = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    n_rows = tl.arange(0, BLOCK_N)
    count = tl.load(counts_ptr) * NUM_KV_HEADS
    # What to do first is read together with how much there is, and later items one turn ahead.
    place, first_key, last_key, share = load_item(items_ptr, tl.program_id(0) // NUM_KV_HEADS)
    if STARTS_EARLY:
        tl.extra.cuda.gdc_wait()
        # Not before: the next product would read its weights while the last one still waits for its own.
        tl.extra.cuda.gdc_launch_dependents()
    for work in range(tl.program_id(0), count, tl.num_programs(0)):
        index = work // NUM_KV_HEADS
        kv_head = work % NUM_KV_HEADS
        next_index = tl.minimum(work + tl.num_programs(0), count - 1) // NUM_KV_HEADS
        next_place, next_first_key, next_last_key, next_share = load_item(items_ptr, next_index)
        token = place & 0xFFFF
        row = place >> 16
        ordinal = share & 0xFFFF
        split = (share >> 16) & 0xFF
        num_splits = share >> 24

        q_offset = token.to(tl.int64) * q_stride + (kv_head * GROUP + m_rows[:, None]) * HEAD_DIM + d[None, :]
        q_mask = (m_rows < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
        q = tl.load(q_ptr + q_offset, mask=q_mask, other=0.0).to(PRODUCT)

        positions = tl.zeros([BLOCK_M], tl.int32) + (last_key - 1)
        table_ptr = tables_ptr + row.to(tl.int64) * max_blocks
        maximum = tl.full([BLOCK_M], float("-inf"), tl.float32)
        weight_sum = tl.zeros([BLOCK_M], tl.float32)
        mixed = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        block = load_blocks(table_ptr, first_key + n_rows, last_key, BLOCK_SIZE)
        for start in tl.range(first_key, last_key, BLOCK_N, num_stages=STAGES):
            next_block = load_blocks(table_ptr, start + BLOCK_N + n_rows, last_key, BLOCK_SIZE)
            maximum, weight_sum, mixed = attend_block(
                q,
                cache_ptr,
                block,
                start + n_rows,
                last_key,
                positions,
                maximum,
                weight_sum,
                mixed,
                scale_log2,
                kv_head,
                True,
                True,
                NUM_KV_HEADS,
                HEAD_DIM,
                BLOCK_D,
                BLOCK_SIZE,
                PRODUCT,
            )
            block = next_block

        out_row = out_ptr + token.to(tl.int64) * out_stride
        if num_splits == 1:
            out_offset = (kv_head * GROUP + m_rows[:, None]) * HEAD_DIM + d[None, :]
            result = mixed / weight_sum[:, None]
            tl.store(out_row + out_offset, result.to(out_ptr.dtype.element_ty), mask=q_mask)
        else:
            left = index.to(tl.int64) * NUM_HEADS + kv_head * GROUP + m_rows
            tl.store(stats_ptr + left * 2, maximum, mask=m_rows < GROUP)
            tl.store(stats_ptr + left * 2 + 1, weight_sum, mask=m_rows < GROUP)
            tl.store(partials_ptr + left[:, None] * HEAD_DIM + d[None, :], mixed, mask=q_mask)
            tl.debug_barrier()  # all threads have stored before one announces it
            arrival_ptr = arrivals_ptr + ordinal * NUM_KV_HEADS + kv_head
            if tl.atomic_add(arrival_ptr, 1, sem="acq_rel") == num_splits - 1:
                tl.store(arrival_ptr, 0)
                combine_splits(
                    partials_ptr,
                    stats_ptr,
                    out_row + kv_head * GROUP * HEAD_DIM,
                    (index - split).to(tl.int64) * NUM_HEADS + kv_head * GROUP,
                    num_splits,
                    NUM_HEADS,
                    HEAD_DIM,
                    BLOCK_D,
                    GROUP,
                    BLOCK_GROUP,
                    BLOCK_SPLITS,
                )
        place, first_key, last_key, share = next_place, next_first_key, next_last_key, next_share
