"""Attends to one block of keys in a running softmax: the inner loop of decode and prefill."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def as_product(x, EARLY: tl.constexpr, PRODUCT: tl.constexpr):
    """Keys or values in the type of the products.

    EARLY, e4m3 numbers become fp16 where they arrive, four to a register, before they go to shared memory:
    spelled as a cast, the compiler moves it behind, and decode's operands are then gathered byte by byte.
    Prefill gains nothing, and on sm_100 its pipeline takes no assembly.
    """
    if EARLY and x.dtype == tl.float8e4nv and tl.float16 == PRODUCT:
        return tl.inline_asm_elementwise(
            asm="""{
            .reg .b16 low, high;
            mov.b32 {low, high}, $2;
            cvt.rn.f16x2.e4m3x2 $0, low;
            cvt.rn.f16x2.e4m3x2 $1, high;
            }""",
            constraints="=r,=r,r",
            args=[x],
            dtype=tl.float16,
            is_pure=False,
            pack=4,
        )
    else:
        return x.to(PRODUCT)


@triton.jit
def load_blocks(table_ptr, key, last_key, BLOCK_SIZE: tl.constexpr):
    """Ids of the blocks that hold the keys before `last_key`.

    A loop reads them one turn ahead: loaded where they are used, they would take half of the pipeline's
    depth.
    """
    return tl.load(table_ptr + key // BLOCK_SIZE, mask=key < last_key, other=0)


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
    EARLY: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PRODUCT: tl.constexpr,
):
    """Semantics: with s[m, n] = q[m] . K[key[n]] * scale_log2 for key[n] <= positions[m], else -inf:
    m' = max(m, max_n s);  l' = l 2^(m - m') + sum_n 2^(s - m');  a' = a 2^(m - m') + sum_n 2^(s - m')
    V[key[n]].

    `block[n]` holds key[n]. Keys from `last_key` on are not read. Without MASKED every row sees every key;
    the bits are the same.
    """
    d = tl.arange(0, BLOCK_D)
    # Lines of the cache are counted in 32 bits (`launch_attention` sees to it), numbers in 64.
    line = (block * (2 * NUM_KV_HEADS) + kv_head) * BLOCK_SIZE + key % BLOCK_SIZE
    k_ptr = cache_ptr + line[:, None].to(tl.int64) * HEAD_DIM + d[None, :]
    v_ptr = k_ptr + NUM_KV_HEADS * BLOCK_SIZE * HEAD_DIM
    # Beyond the end a former owner may have left NaN, which a weight of zero would not silence.
    there = (key < last_key)[:, None]
    if HEAD_DIM != BLOCK_D:
        there = there & (d < HEAD_DIM)[None, :]
    if MASKED or HEAD_DIM != BLOCK_D:
        k = as_product(tl.load(k_ptr, mask=there, other=0.0), EARLY, PRODUCT)
    else:
        k = as_product(tl.load(k_ptr), EARLY, PRODUCT)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    if MASKED:
        scores = tl.where(key[None, :] <= positions[:, None], scores, float("-inf"))
    new_maximum = tl.maximum(maximum, tl.max(scores, 1) * scale_log2)
    # One rounding, spelled out: with and without mask the compiler must do the same.
    weights = tl.exp2(tl.fma(scores, scale_log2, -new_maximum[:, None]))
    fade = tl.exp2(maximum - new_maximum)
    weight_sum = weight_sum * fade + tl.sum(weights, 1)
    mixed = mixed * fade[:, None]
    if MASKED or HEAD_DIM != BLOCK_D:
        v = as_product(tl.load(v_ptr, mask=there, other=0.0), EARLY, PRODUCT)
    else:
        v = as_product(tl.load(v_ptr), EARLY, PRODUCT)
    mixed = tl.dot(weights.to(PRODUCT), v, mixed, input_precision="ieee")
    return new_maximum, weight_sum, mixed
