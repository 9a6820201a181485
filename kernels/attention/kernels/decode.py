"""Attention of sequences with one query each: the keys of a sequence are split over programs.

Owns the kernel. Refuses to know how work was cut: items and sequences are read (`device_plan.py`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention.kernels.block import attend_block, load_blocks, load_q
from kernels.attention.kernels.rows import quantize_row

COMBINED_SPLITS = tl.constexpr(8)
"""Shares added at a time: their loads are in flight together. 32 registers a thread at 4 heads of 128."""


@triton.jit
def decode_kernel(
    q_ptr,
    cache_ptr,
    tables_ptr,
    counts_ptr,
    seqs_ptr,
    items_ptr,
    partials_ptr,
    stats_ptr,
    arrivals_ptr,
    out_ptr,
    quantized_ptr,
    row_scale_ptr,
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
    BLOCK_WIDTH: tl.constexpr,
    QUANTIZE: tl.constexpr,
    PRODUCT: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Semantics: out[t, h] = sum_p softmax_p(q[t, h] . K[s, p, g] * scale) V[s, p, g] for p < total_len[s].

    Item i is (sequence s, split j): keys [j * split_len[s], (j + 1) * split_len[s]) of s. A program takes an item
    and a KV head g with the GROUP query heads that share it, so that keys and values are read once. A sequence
    of one split is done then. Of several, each leaves its share (sum of weighted values, fp32, with the
    maximum and the sum of weights) and whoever arrives last adds the shares up in the order of the splits. With
    QUANTIZE the last of a token's KV heads quantises its row. `arrivals` is zero before and after.

    q_THD bf16, cache_N2HBD bf16 or e4m3, tables_RB, counts_2, seqs_S4 (token, row, total_len, split_len),
    items_I (s + (j << 16)), arrivals [S, Hkv + 1] int32, partials [I, Hq, D] and stats [I, Hq, 2] fp32,
    out [T, Hq * D] bf16. Products in PRODUCT: bf16, or fp16 for e4m3, which it holds exactly.
    Source: Dao et al., Flash-Decoding; Milakov and Gimelshein, arXiv 1805.02867.
    """
    m_rows = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    n_rows = tl.arange(0, BLOCK_N)
    head_rows = tl.arange(0, BLOCK_GROUP)
    count = tl.load(counts_ptr) * NUM_KV_HEADS
    for work in range(tl.program_id(0), count, tl.num_programs(0)):
        index = work // NUM_KV_HEADS
        kv_head = work % NUM_KV_HEADS
        item = tl.load(items_ptr + index)
        ordinal = item & 0xFFFF
        split = item >> 16
        token = tl.load(seqs_ptr + ordinal * 4)
        row = tl.load(seqs_ptr + ordinal * 4 + 1)
        total_len = tl.load(seqs_ptr + ordinal * 4 + 2)
        split_len = tl.load(seqs_ptr + ordinal * 4 + 3)
        num_splits = (total_len + split_len - 1) // split_len
        first_key = split * split_len
        last_key = tl.minimum(first_key + split_len, total_len)

        q_offset = token.to(tl.int64) * q_stride + (kv_head * GROUP + m_rows[:, None]) * HEAD_DIM + d[None, :]
        q_mask = (m_rows < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
        q = load_q(q_ptr, q_offset, q_mask, PRODUCT)

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
                NUM_KV_HEADS,
                HEAD_DIM,
                BLOCK_D,
                BLOCK_SIZE,
                PRODUCT,
            )
            block = next_block

        out_row = out_ptr + token.to(tl.int64) * out_stride
        finished = num_splits == 1
        if num_splits == 1:
            out_offset = (kv_head * GROUP + m_rows[:, None]) * HEAD_DIM + d[None, :]
            result = mixed / weight_sum[:, None]
            tl.store(out_row + out_offset, result.to(out_ptr.dtype.element_ty), mask=q_mask)
        else:
            share = (index.to(tl.int64) * NUM_HEADS + kv_head * GROUP + m_rows) * 2
            tl.store(stats_ptr + share, maximum, mask=m_rows < GROUP)
            tl.store(stats_ptr + share + 1, weight_sum, mask=m_rows < GROUP)
            tl.store(partials_ptr + (share // 2)[:, None] * HEAD_DIM + d[None, :], mixed, mask=q_mask)
            tl.debug_barrier()  # all threads have stored before one announces it
            arrival_ptr = arrivals_ptr + ordinal * (NUM_KV_HEADS + 1) + kv_head
            finished = tl.atomic_add(arrival_ptr, 1, sem="acq_rel") == num_splits - 1
            if finished:
                tl.store(arrival_ptr, 0)
                first_share = (index - split).to(tl.int64) * NUM_HEADS + kv_head * GROUP
                own = head_rows < GROUP
                # A split that is not there has a maximum of -inf, so it weighs nothing.
                j = tl.arange(0, BLOCK_SPLITS)
                all_stats = stats_ptr + (first_share + (j * NUM_HEADS)[:, None] + head_rows[None, :]) * 2
                all_there = (j < num_splits)[:, None] & own[None, :]
                maxima = tl.load(all_stats, mask=all_there, other=float("-inf"), cache_modifier=".cg")
                highest = tl.where(own, tl.max(maxima, 0), 0.0)
                fades = tl.exp2(maxima - highest[None, :])
                sums = tl.load(all_stats + 1, mask=all_there, other=0.0, cache_modifier=".cg")
                total_weight = tl.where(own, tl.sum(sums * fades, 0), 1.0)
                total = tl.zeros([BLOCK_GROUP, BLOCK_D], tl.float32)
                part_mask = own[:, None] & (d < HEAD_DIM)[None, :]
                for first_j in range(0, num_splits, COMBINED_SPLITS):
                    some_j = first_j + tl.arange(0, COMBINED_SPLITS)
                    some_there = (some_j < num_splits)[:, None] & own[None, :]
                    share_JG = first_share + (some_j * NUM_HEADS)[:, None] + head_rows[None, :]
                    some_maxima = tl.load(
                        stats_ptr + share_JG * 2, mask=some_there, other=float("-inf"), cache_modifier=".cg"
                    )
                    parts = tl.load(
                        partials_ptr + share_JG[:, :, None] * HEAD_DIM + d[None, None, :],
                        mask=some_there[:, :, None] & (d < HEAD_DIM)[None, None, :],
                        other=0.0,
                        cache_modifier=".cg",
                    )
                    total += tl.sum(parts * tl.exp2(some_maxima - highest[None, :])[:, :, None], 0)
                out_offset = (kv_head * GROUP + head_rows[:, None]) * HEAD_DIM + d[None, :]
                result = total / total_weight[:, None]
                tl.store(out_row + out_offset, result.to(out_ptr.dtype.element_ty), mask=part_mask)
        if QUANTIZE:
            if finished:
                tl.debug_barrier()
                heads_ptr = arrivals_ptr + ordinal * (NUM_KV_HEADS + 1) + NUM_KV_HEADS
                if tl.atomic_add(heads_ptr, 1, sem="acq_rel") == NUM_KV_HEADS - 1:
                    tl.store(heads_ptr, 0)
                    quantize_row(
                        out_ptr,
                        quantized_ptr,
                        row_scale_ptr,
                        token,
                        out_stride,
                        NUM_HEADS * HEAD_DIM,
                        BLOCK_WIDTH,
                    )
