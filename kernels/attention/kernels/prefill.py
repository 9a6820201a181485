"""Computes attention of chunks of several queries: causal, over the cached prefix and the chunk itself.

Tiles are read from the plan (`device_plan.py`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention.kernels.block import attend_block, load_blocks


@triton.jit
def prefill_kernel(
    q_ptr,
    cache_ptr,
    tables_ptr,
    counts_ptr,
    tiles_ptr,
    out_ptr,
    scale_log2,
    q_stride,
    out_stride,
    max_blocks,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PRODUCT: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Semantics: out[t, h] = sum_p softmax_p(q[t, h] . K[s, p, g] * scale) V[s, p, g] for p <= position[t].

    Tile i is `count` tokens of one sequence from `token` on, the first at `position`; a program takes a tile
    and a KV head: its rows are (token, query head of the group), token-major. Keys are read in blocks from 0,
    and a block that a row does not see leaves it as it was, so a row's bits do not depend on its tile.

    q_THD bf16, cache_N2HBD bf16 or e4m3, tables_RB, counts_3 (the second), tiles_I4 (token, count, position,
    row) int32, out [T, Hq * D] bf16. Products in PRODUCT: bf16, or fp16 for e4m3, which it holds exactly.
    Source: Dao, "FlashAttention-2", arXiv 2307.08691.
    """
    tile = tl.program_id(0) // NUM_KV_HEADS
    kv_head = tl.program_id(0) % NUM_KV_HEADS
    # What to do is read together with whether there is something.
    first_token = tl.load(tiles_ptr + tile * 4)
    count = tl.load(tiles_ptr + tile * 4 + 1)
    first_position = tl.load(tiles_ptr + tile * 4 + 2)
    row = tl.load(tiles_ptr + tile * 4 + 3)
    if tile < tl.load(counts_ptr + 1):
        m_rows = tl.arange(0, BLOCK_M)
        d = tl.arange(0, BLOCK_D)
        n_rows = tl.arange(0, BLOCK_N)
        tokens = m_rows // GROUP
        heads = kv_head * GROUP + m_rows % GROUP
        within = (tokens < count)[:, None] & (d < HEAD_DIM)[None, :]
        # Rows beyond the tile look where its first token looks: a row that sees nothing would divide by zero.
        positions = first_position + tl.where(tokens < count, tokens, 0)
        line = (first_token + tokens).to(tl.int64)
        q_offset = line[:, None] * q_stride + heads[:, None] * HEAD_DIM + d[None, :]
        q = tl.load(q_ptr + q_offset, mask=within, other=0.0).to(PRODUCT)

        table_ptr = tables_ptr + row.to(tl.int64) * max_blocks
        maximum = tl.full([BLOCK_M], float("-inf"), tl.float32)
        weight_sum = tl.zeros([BLOCK_M], tl.float32)
        mixed = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        last_key = first_position + count
        # Blocks that every row sees whole need no mask; those of the diagonal follow.
        diagonal = (first_position + 1) // BLOCK_N * BLOCK_N
        block = load_blocks(table_ptr, n_rows, last_key, BLOCK_SIZE)
        for start in tl.range(0, diagonal, BLOCK_N, num_stages=STAGES):
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
                False,
                False,
                NUM_KV_HEADS,
                HEAD_DIM,
                BLOCK_D,
                BLOCK_SIZE,
                PRODUCT,
            )
            block = next_block
        for start in tl.range(diagonal, last_key, BLOCK_N, num_stages=STAGES):
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
                False,
                NUM_KV_HEADS,
                HEAD_DIM,
                BLOCK_D,
                BLOCK_SIZE,
                PRODUCT,
            )
            block = next_block
        result = mixed / weight_sum[:, None]
        out_offset = line[:, None] * out_stride + heads[:, None] * HEAD_DIM + d[None, :]
        tl.store(out_ptr + out_offset, result.to(out_ptr.dtype.element_ty), mask=within)
