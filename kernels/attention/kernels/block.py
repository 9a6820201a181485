"""One block of keys in a running softmax: the inner loop of decode and prefill.

Owns the arithmetic. Refuses to know whose rows they are and which keys come next.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_q(q_ptr, offset, mask, PRODUCT: tl.constexpr):
    """Queries in the type of the products; fp16 ends at 65504."""
    q = tl.load(q_ptr + offset, mask=mask, other=0.0)
    if tl.float16 == PRODUCT:
        q = tl.clamp(q.to(tl.float32), -65504.0, 65504.0)
    return q.to(PRODUCT)


@triton.jit
def load_blocks(table_ptr, key, last_key, BLOCK_SIZE: tl.constexpr):
    """Ids of the blocks that hold the keys before `last_key`.

    A loop reads them one turn ahead: loaded where they are used, they would take half of the pipeline's depth.
    """
    return tl.load(table_ptr + key // BLOCK_SIZE, mask=key < last_key, other=0).to(tl.int64)


@triton.jit
def attend_block(
    q,
    cache_ptr,
    block,
    key,
    last_key,
    positions,
    maximum,
    weight_sum,
    mixed,
    scale_log2,
    kv_head,
    MASKED: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PRODUCT: tl.constexpr,
):
    """Semantics: with s[m, n] = q[m] . K[key[n]] * scale_log2 for key[n] <= positions[m], else -inf:
    m' = max(m, max_n s);  l' = l 2^(m - m') + sum_n 2^(s - m');  a' = a 2^(m - m') + sum_n 2^(s - m') V[key[n]].

    `block[n]` holds key[n]. Keys from `last_key` on are not read. Without MASKED every row sees every key; the
    bits are the same.
    """
    d = tl.arange(0, BLOCK_D)
    dims = (d < HEAD_DIM)[None, :]
    plane = NUM_KV_HEADS * BLOCK_SIZE * HEAD_DIM
    # Beyond the end a former owner may have left NaN, which a weight of zero would not silence.
    there = key < last_key
    line = (block * (2 * NUM_KV_HEADS) + kv_head) * BLOCK_SIZE + key % BLOCK_SIZE
    k_ptr = cache_ptr + line[:, None] * HEAD_DIM + d[None, :]
    if MASKED:
        k = tl.load(k_ptr, mask=there[:, None] & dims, other=0.0).to(PRODUCT)
    elif HEAD_DIM == BLOCK_D:
        k = tl.load(k_ptr).to(PRODUCT)
    else:
        k = tl.load(k_ptr, mask=dims, other=0.0).to(PRODUCT)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    if MASKED:
        scores = tl.where(key[None, :] <= positions[:, None], scores, float("-inf"))
    new_maximum = tl.maximum(maximum, tl.max(scores, 1) * scale_log2)
    # One rounding, spelled out: with and without mask the compiler must do the same.
    weights = tl.exp2(tl.fma(scores, scale_log2, -new_maximum[:, None]))
    fade = tl.exp2(maximum - new_maximum)
    weight_sum = weight_sum * fade + tl.sum(weights, 1)
    mixed = mixed * fade[:, None]
    if MASKED:
        v = tl.load(k_ptr + plane, mask=there[:, None] & dims, other=0.0).to(PRODUCT)
    elif HEAD_DIM == BLOCK_D:
        v = tl.load(k_ptr + plane).to(PRODUCT)
    else:
        v = tl.load(k_ptr + plane, mask=dims, other=0.0).to(PRODUCT)
    mixed = tl.dot(weights.to(PRODUCT), v, mixed, input_precision="ieee")
    return new_maximum, weight_sum, mixed
