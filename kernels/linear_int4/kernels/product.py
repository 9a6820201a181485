"""Computes the 4-bit linear on a GPU: codes become bf16 or FP8 in registers, right where the tensor core
reads them.

`kernel` chooses tile sizes, `weight` packs the words.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.linear_int4.kernels.decode import bf16_numbers, fp8_codes, fp8_minus_zeros, half_of, to_fp32

# One thread asks for a stretch of memory ($1 address, $2 bytes); the L2 cache has it when loads come.
FETCH = tl.constexpr("""
{
 .reg .pred first;
 .reg .b32 thread;
 mov.u32 thread, %tid.x;
 setp.eq.u32 first, thread, 0;
 @first cp.async.bulk.prefetch.L2.global [$1], $2;
 mov.u32 $0, 0;
}
""")


@triton.jit
def _group_product(
    words, x_KT, zeros_at, BLOCK_N: tl.constexpr, FP8: tl.constexpr, INTERPRETING: tl.constexpr
):
    """Semantics: [BLOCK_N, BLOCK_T] sums of (code - zero) x over one group; in units of 1 / 512 with FP8."""
    if INTERPRETING:
        x_KT = x_KT.to(tl.float32)  # its product of bf16 is wrong
    if FP8:
        product = tl.dot(fp8_codes(words, BLOCK_N, zeros_at is None, INTERPRETING), x_KT)
        if zeros_at is not None:
            # By a second product: taking zero points off in registers would cost more than the tensor core
            # has left over.
            product = tl.dot(fp8_minus_zeros(zeros_at, BLOCK_N, INTERPRETING), x_KT, product)
    else:
        product = tl.dot(bf16_numbers(words, zeros_at, BLOCK_N, INTERPRETING), x_KT)
    return product


@triton.jit(do_not_specialize=["num_rows", "num_pairs"])
def linear_int4_kernel(
    x_ptr,
    x_scale_ptr,
    words_ptr,
    scales_ptr,
    zeros_ptr,
    bias_ptr,
    out_ptr,
    partial_ptr,
    arrivals_ptr,
    num_rows,
    num_pairs,
    x_units,
    out_features,
    padded_features,
    in_features,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    X_UNIT: tl.constexpr,
    MASK_K: tl.constexpr,
    HALF: tl.constexpr,
    FP8: tl.constexpr,
    FETCH_PAIRS: tl.constexpr,
    STARTS_EARLY: tl.constexpr,
    INTERPRETING: tl.constexpr,
):
    """Semantics: out[t, n] = x_scale[t] sum_g scale[n, g] p[t, n, g] + bias[n],
        p[t, n, g] = sum_{k in g} x[t, k] (code[n, k] - zero[n, g])

    A program has `BLOCK_N` rows of the weight, `BLOCK_T` of x and a share of the pairs of groups. Where pairs
    are shared out, every program leaves its sum in `partial`, and the one that comes last adds them up in the
    order of the shares: the same bits whichever is last.

    Args:
        x_ptr: bf16, or e4m3 with FP8: [num_rows, in_features], rows `x_units * X_UNIT` apart.
        x_scale_ptr: fp32 [num_rows], or None.
        words_ptr, scales_ptr, zeros_ptr: see `Int4Weight`; zeros_ptr may be None.
        bias_ptr: fp32 [out_features] or None.
        out_ptr: bf16 [num_rows, out_features], contiguous.
        partial_ptr: fp32 [tiles, SPLITS, BLOCK_T, BLOCK_N] scratch; unused where SPLITS is 1.
        arrivals_ptr: int32 [tiles] zeros; zeros again in the end.
        X_UNIT: 16 bytes of x where its rows are aligned to them, else 1.
        FETCH_PAIRS: of the share, asked for before anything else: where this program starts early, they
            travel while the kernel before it ends.
    """
    tiles_t = tl.cdiv(num_rows, BLOCK_T)
    tile_t = tl.program_id(0) % tiles_t
    split = tl.program_id(0) // tiles_t % SPLITS
    tile_n = tl.program_id(0) // tiles_t // SPLITS
    first_pair = split * num_pairs // SPLITS
    last_pair = (split + 1) * num_pairs // SPLITS

    # 128 rows of the weight have 4096 words per pair of groups; a tile may have several such or half of one.
    group_words: tl.constexpr = BLOCK_N * 16
    row_words: tl.constexpr = group_words if group_words < 2048 else 2048
    first_row = tile_n * BLOCK_N
    tiles_at = words_ptr + (first_row // 128).to(tl.int64) * num_pairs * 4096 + first_row % 128 * 16
    if STARTS_EARLY and FETCH_PAIRS > 0:
        for row in tl.static_range(group_words // row_words):
            fetched = tl.minimum(last_pair - first_pair, FETCH_PAIRS) * (2 * row_words * 4)
            at = tiles_at + (row * num_pairs + first_pair) * 4096
            tl.inline_asm_elementwise(
                FETCH, "=r,l,r", [at.to(tl.int64), fetched], dtype=tl.int32, is_pure=False, pack=1
            )

    word = tl.arange(0, group_words)
    words_at = tiles_at + (word // row_words * num_pairs * 4096 + word % row_words)
    row_T = tile_t * BLOCK_T + tl.arange(0, BLOCK_T)
    row_N = first_row + tl.arange(0, BLOCK_N)
    k = tl.arange(0, 128)
    x_at = x_ptr + (row_T.to(tl.int64) * (x_units * X_UNIT))[None, :] + k[:, None]
    valid_T = row_T < num_rows
    valid = valid_T[None, :]
    if STARTS_EARLY:
        tl.extra.cuda.gdc_wait()

    total = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
    for pair in tl.range(first_pair, last_pair, num_stages=STAGES):
        words_even = tl.load(words_at + pair * 4096)
        words_odd = tl.load(words_at + (pair * 4096 + 2048))
        even_left, odd_left = in_features - pair * 256, in_features - pair * 256 - 128
        mask_even = valid & (k < even_left)[:, None] if MASK_K else valid
        mask_odd = valid & (k < odd_left)[:, None] if MASK_K else valid
        x_even = tl.load(x_at + pair * 256, mask=mask_even, other=0.0)
        x_odd = tl.load(x_at + (pair * 256 + 128), mask=mask_odd, other=0.0)
        scales_N = tl.load(scales_ptr + pair * padded_features + row_N)
        if zeros_ptr is not None:
            even_zeros = zeros_ptr + pair * 2 * padded_features + first_row
            odd_zeros = even_zeros + padded_features
        else:
            even_zeros = None
            odd_zeros = None
        even = _group_product(words_even, x_even, even_zeros, BLOCK_N, FP8, INTERPRETING)
        total += even * to_fp32(half_of(scales_N, 0), HALF)[:, None]
        odd = _group_product(words_odd, x_odd, odd_zeros, BLOCK_N, FP8, INTERPRETING)
        total += odd * to_fp32(half_of(scales_N, 1), HALF)[:, None]

    if STARTS_EARLY:
        # Not sooner: blocks of a later kernel would take their places while this one is at work, unevenly.
        tl.extra.cuda.gdc_launch_dependents()
    total_TN = tl.trans(total)
    tile = tile_n * tiles_t + tile_t
    inner = tl.arange(0, BLOCK_T)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    shares_at = partial_ptr + tile.to(tl.int64) * (SPLITS * BLOCK_T * BLOCK_N) + inner
    if SPLITS > 1:
        tl.store(shares_at + split * (BLOCK_T * BLOCK_N), total_TN, mask=valid_T[:, None])
        tl.debug_barrier()  # the whole block has stored before it counts as arrived
        arrived = tl.atomic_add(arrivals_ptr + tile, 1, sem="acq_rel")
        if arrived < SPLITS - 1:
            return
        tl.store(arrivals_ptr + tile, 0)
        total_TN = tl.zeros((BLOCK_T, BLOCK_N), tl.float32)
        for share in tl.static_range(SPLITS):
            total_TN += tl.load(
                shares_at + share * (BLOCK_T * BLOCK_N),
                mask=valid_T[:, None],
                other=0.0,
                cache_modifier=".cg",
            )
    if x_scale_ptr is not None:
        # 512: codes are read as FP8 numbers, whose smallest is 2^-9.
        total_TN *= (512.0 * tl.load(x_scale_ptr + row_T, mask=valid_T, other=0.0))[:, None]
    if bias_ptr is not None:
        total_TN += tl.load(bias_ptr + row_N, mask=row_N < out_features, other=0.0)[None, :]
    out_at = out_ptr + row_T.to(tl.int64)[:, None] * out_features + row_N[None, :]
    mask = valid_T[:, None] & (row_N < out_features)[None, :]
    tl.store(out_at, total_TN.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def dequantize_kernel(
    words_ptr,
    scales_ptr,
    zeros_ptr,
    out_ptr,
    num_pairs,
    out_features,
    padded_features,
    in_features,
    BLOCK_N: tl.constexpr,
    HALF: tl.constexpr,
    FP8: tl.constexpr,
    INTERPRETING: tl.constexpr,
):
    """Semantics: out[n, k] = (code[n, k] - zero[n, k / 128]) * scale[n, k / 128].

    One program writes `BLOCK_N` rows of one group.

    Args:
        words_ptr, scales_ptr, zeros_ptr: see `Int4Weight`; zeros_ptr may be None. FP8: which order they have.
        out_ptr: bf16 [out_features, in_features], contiguous.
    """
    group = tl.program_id(0)
    first_row = tl.program_id(1) * BLOCK_N
    row_N = first_row + tl.arange(0, BLOCK_N)
    at = words_ptr + ((first_row // 128).to(tl.int64) * num_pairs * 2 + group) * 2048 + first_row % 128 * 16
    words = tl.load(at + tl.arange(0, BLOCK_N * 16))
    zeros_at = None if zeros_ptr is None else zeros_ptr + group * padded_features + first_row
    if FP8:
        numbers_NK = fp8_codes(words, BLOCK_N, zeros_at is None, INTERPRETING).to(tl.float32)
        if zeros_at is not None:
            numbers_NK += fp8_minus_zeros(zeros_at, BLOCK_N, INTERPRETING).to(tl.float32)
        numbers_NK *= 512
    else:
        numbers_NK = bf16_numbers(words, zeros_at, BLOCK_N, INTERPRETING).to(tl.float32)
    pair_N = tl.load(scales_ptr + group // 2 * padded_features + row_N)
    scale_N = to_fp32((pair_N >> (16 * (group % 2))) & 0xFFFF, HALF)
    value_NK = numbers_NK * scale_N[:, None]
    k = group * 128 + tl.arange(0, 128)
    out_at = out_ptr + row_N.to(tl.int64)[:, None] * in_features + k[None, :]
    mask = (row_N < out_features)[:, None] & (k < in_features)[None, :]
    tl.store(out_at, value_NK.to(out_ptr.dtype.element_ty), mask=mask)
