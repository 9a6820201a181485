"""Computes attention of few short sequences with one query each: a program asks for all its keys and values
before the queries are there, and holds them in registers.

Items and sequences are read from the plan (`device_plan.py`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention.kernels.decode import combine_splits, load_item


@triton.jit
def _unconverted(x):
    """Keeps numbers as they were loaded until here. Without it the compiler converts them to fp32 as soon as
    they arrive, for which there are not enough registers.
    """
    return tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=32 // x.dtype.primitive_bitwidth
    )


@triton.jit
def decode_ahead_kernel(
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
    KEYS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    STARTS_EARLY: tl.constexpr,
):
    """Semantics: as `decode_kernel`, for items of up to KEYS keys.

    A program takes an item and one query head. Of a sequence's keys and values only the last ones are this
    step's: the others were there before it, and are read while the kernels that make the queries still run.
    It needs hardly any shared memory, so that it fits beside the product that runs then. Programs that share
    a KV head read the same, from the L2 cache.

    As `decode_kernel`, but counts_3 (the third), items_I4 those of this kernel, arrivals [S, Hq].
    Grid: (most items) * NUM_HEADS.
    """
    work = tl.program_id(0)
    index, head = work // NUM_HEADS, work % NUM_HEADS
    place, first_key, last_key, share = load_item(items_ptr, index)
    if index >= tl.load(counts_ptr + 2):
        # The kernel ends after those before it if one of its programs does.
        if STARTS_EARLY and work == 0:
            tl.extra.cuda.gdc_wait()
        return
    token, row = (place & 0xFFFF).to(tl.int64), (place >> 16).to(tl.int64)
    ordinal, split, num_splits = share & 0xFFFF, (share >> 16) & 0xFF, share >> 24
    kv_head = head // (NUM_HEADS // NUM_KV_HEADS)

    d = tl.arange(0, BLOCK_D)
    in_head = d < HEAD_DIM
    key = first_key + tl.arange(0, KEYS)
    newest = last_key - 1
    has_newest = split == num_splits - 1
    is_old = key < tl.where(has_newest, newest, last_key)
    table_ptr = tables_ptr + row * max_blocks
    block = tl.load(table_ptr + key // BLOCK_SIZE, mask=is_old, other=0)
    newest_block = tl.load(table_ptr + newest // BLOCK_SIZE)
    # Lines of the cache are counted in 32 bits (`launch_attention` sees to it), numbers in 64.
    line = (block * (2 * NUM_KV_HEADS) + kv_head) * BLOCK_SIZE + key % BLOCK_SIZE
    newest_line = (newest_block * (2 * NUM_KV_HEADS) + kv_head) * BLOCK_SIZE + newest % BLOCK_SIZE
    k_at = cache_ptr + line[:, None].to(tl.int64) * HEAD_DIM + d[None, :]
    newest_at = cache_ptr + newest_line.to(tl.int64) * HEAD_DIM + d
    PLANE: tl.constexpr = NUM_KV_HEADS * BLOCK_SIZE * HEAD_DIM
    there = is_old[:, None] & in_head[None, :]
    k = tl.load(k_at, mask=there, other=0.0)
    v = tl.load(k_at + PLANE, mask=there, other=0.0)
    if STARTS_EARLY:
        tl.extra.cuda.gdc_wait()
        # Not before: the next product would read its weights while the last one still waits for its own.
        tl.extra.cuda.gdc_launch_dependents()

    q = tl.load(q_ptr + token * q_stride + head * HEAD_DIM + d, mask=in_head, other=0.0).to(tl.float32)
    newest_k = tl.load(newest_at, mask=in_head & has_newest, other=0.0).to(tl.float32)
    newest_v = tl.load(newest_at + PLANE, mask=in_head & has_newest, other=0.0).to(tl.float32)
    if STARTS_EARLY:
        k, v = _unconverted(k), _unconverted(v)
    q *= scale_log2
    scores = tl.where(is_old, tl.sum(k.to(tl.float32) * q[None, :], 1), float("-inf"))
    newest_score = tl.where(has_newest, tl.sum(newest_k * q, 0), float("-inf"))
    maximum = tl.maximum(tl.max(scores, 0), newest_score)
    weights = tl.exp2(scores - maximum)
    newest_weight = tl.exp2(newest_score - maximum)
    weight_sum = tl.sum(weights, 0) + newest_weight
    mixed = tl.sum(v.to(tl.float32) * weights[:, None], 0) + newest_v * newest_weight

    out_row = out_ptr + token * out_stride + head * HEAD_DIM
    if num_splits == 1:
        tl.store(out_row + d, (mixed / weight_sum).to(out_ptr.dtype.element_ty), mask=in_head)
    else:
        left = index.to(tl.int64) * NUM_HEADS + head
        tl.store(stats_ptr + left * 2, maximum)
        tl.store(stats_ptr + left * 2 + 1, weight_sum)
        tl.store(partials_ptr + left * HEAD_DIM + d, mixed, mask=in_head)
        tl.debug_barrier()  # all threads have stored before one announces it
        arrival_ptr = arrivals_ptr + ordinal * NUM_HEADS + head
        if tl.atomic_add(arrival_ptr, 1, sem="acq_rel") == num_splits - 1:
            tl.store(arrival_ptr, 0)
            combine_splits(
                partials_ptr,
                stats_ptr,
                out_row,
                (index - split).to(tl.int64) * NUM_HEADS + head,
                num_splits,
                NUM_HEADS,
                HEAD_DIM,
                BLOCK_D,
                1,
                1,
                BLOCK_SPLITS,
            )
