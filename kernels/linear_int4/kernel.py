"""The 4-bit linear on a GPU: codes become bf16 in registers, right where the tensor core reads them.

Owns the Triton kernels. Refuses to know which tile sizes suit which shape (`launch`) and where weights come
from (`weight`).
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from kernels.compilation import Compilation

# One word to four registers of two bf16 each: OR makes 128 + code of a nibble, and adding -(128 + zero) is
# exact. Multiplied by one and added because sm_80 adds bf16 in no other way; $8 word, $9 both halves -(128 + zero).
DECODE = tl.constexpr("""
{
 .reg .b32 shifted, pair0, pair1, pair2, pair3, one;
 mov.b32 one, 0x3f803f80;
 lop3.b32 pair0, $8, 0x000f000f, 0x43004300, 0xea;
 shr.u32 shifted, $8, 4;
 lop3.b32 pair1, shifted, 0x000f000f, 0x43004300, 0xea;
 shr.u32 shifted, $8, 8;
 lop3.b32 pair2, shifted, 0x000f000f, 0x43004300, 0xea;
 shr.u32 shifted, $8, 12;
 lop3.b32 pair3, shifted, 0x000f000f, 0x43004300, 0xea;
 fma.rn.bf16x2 pair0, pair0, one, $9;
 fma.rn.bf16x2 pair1, pair1, one, $9;
 fma.rn.bf16x2 pair2, pair2, one, $9;
 fma.rn.bf16x2 pair3, pair3, one, $9;
 mov.b32 {$0, $1}, pair0;
 mov.b32 {$2, $3}, pair1;
 mov.b32 {$4, $5}, pair2;
 mov.b32 {$6, $7}, pair3;
}
""")
MINUS_136 = tl.constexpr(0xC308C308 - (1 << 32))
"""bf16, twice: -(128 + 8), where there are no zero points."""

# One thread asks for a stretch of memory; the L2 cache has it when the block's loads come. $1 address, $2 bytes.
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
def _nibble(words, minus_zero, SHIFT: tl.constexpr):
    code = (((words >> SHIFT) & 15) + 128).to(tl.float32)
    return code + (minus_zero << 16).to(tl.float32, bitcast=True)


@triton.jit
def _decode(words, minus_zero, INTERPRETING: tl.constexpr):
    """Semantics: eight numbers code - zero of a word: nibbles 0, 4, 1, 5, 2, 6, 3, 7."""
    if INTERPRETING:
        v0 = _nibble(words, minus_zero, 0)
        v1 = _nibble(words, minus_zero, 16)
        v2 = _nibble(words, minus_zero, 4)
        v3 = _nibble(words, minus_zero, 20)
        v4 = _nibble(words, minus_zero, 8)
        v5 = _nibble(words, minus_zero, 24)
        v6 = _nibble(words, minus_zero, 12)
        v7 = _nibble(words, minus_zero, 28)
    else:
        v0, v1, v2, v3, v4, v5, v6, v7 = tl.inline_asm_elementwise(
            DECODE,
            "=h,=h,=h,=h,=h,=h,=h,=h,r,r",
            [words, minus_zero],
            dtype=(
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
            ),
            is_pure=True,
            pack=1,
        )
    return v0, v1, v2, v3, v4, v5, v6, v7


@triton.jit
def _half_of_group(words, group):
    """The 16 bits of a pair of groups that are this group's."""
    return (words >> (16 * (group % 2))) & 0xFFFF


@triton.jit
def _tile(words, zeros_at, BLOCK_N: tl.constexpr, INTERPRETING: tl.constexpr):
    """Semantics: [BLOCK_N, 128] numbers code - zero of `BLOCK_N / 16` blocks of words (layout: `weight`)."""
    blocks: tl.constexpr = BLOCK_N // 16
    words = tl.reshape(words, (blocks, 2, 8, 4, 4))
    if zeros_at is not None:
        # Loaded in the shape of the blocks and used as it is: anything else sends the numbers through shared
        # memory on their way to the tensor core.
        block = tl.arange(0, blocks)[:, None, None, None, None] * 16
        row = block + tl.arange(0, 2)[None, :, None, None, None] * 8 + tl.arange(0, 8)[None, None, :, None, None]
        minus_zero = tl.broadcast_to(tl.load(zeros_at + row), (blocks, 2, 8, 4, 4))
    else:
        minus_zero = tl.full((blocks, 2, 8, 4, 4), MINUS_136, tl.int32)
    v0, v1, v2, v3, v4, v5, v6, v7 = _decode(words, minus_zero, INTERPRETING)
    low = tl.join(tl.join(v0, v1), tl.join(v2, v3))
    high = tl.join(tl.join(v4, v5), tl.join(v6, v7))
    # block, i, r, c, w, p, j % 2, j / 2 -> row (block, i, r), input (w, j / 2, j % 2, c, p)
    numbers = tl.permute(tl.join(low, high), (0, 1, 2, 4, 7, 6, 3, 5))
    return tl.reshape(numbers, (BLOCK_N, 128))


@triton.jit
def _to_fp32(bits_N, HALF: tl.constexpr):
    if HALF:
        return bits_N.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return (bits_N << 16).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["num_rows", "num_groups"])
def linear_int4_kernel(
    x_ptr,
    words_ptr,
    scales_ptr,
    zeros_ptr,
    bias_ptr,
    out_ptr,
    partial_ptr,
    arrivals_ptr,
    num_rows,
    num_groups,
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
    FETCH_GROUPS: tl.constexpr,
    STARTS_EARLY: tl.constexpr,
    INTERPRETING: tl.constexpr,
):
    """Semantics: out[t, n] = sum_g scale[n, g] sum_{k in g} x[t, k] (code[n, k] - zero[n, g]) + bias[n].

    A program has `BLOCK_N` rows of the weight, `BLOCK_T` of x and a share of the groups. Where groups are
    shared out, every program leaves its sum in `partial`, and the one that comes last adds them up in the
    order of the shares: the same bits whoever is last.

    Args:
        x_ptr: bf16 [num_rows, in_features], rows `x_units * X_UNIT` apart.
        words_ptr, scales_ptr, zeros_ptr: see `Int4Weight`; zeros_ptr may be None.
        bias_ptr: fp32 [out_features] or None.
        out_ptr: bf16 [num_rows, out_features], contiguous.
        partial_ptr: fp32 [tiles, SPLITS, BLOCK_T, BLOCK_N] scratch; unused where SPLITS is 1.
        arrivals_ptr: int32 [tiles] zeros; zeros again in the end.
        X_UNIT: 8 where rows of x are 16 bytes aligned, else 1.
        FETCH_GROUPS: groups of the share asked for before anything else: where this program starts early,
            they travel while the kernel before it ends.
    """
    tiles_t = tl.cdiv(num_rows, BLOCK_T)
    tile_t = tl.program_id(0) % tiles_t
    split = tl.program_id(0) // tiles_t % SPLITS
    tile_n = tl.program_id(0) // tiles_t // SPLITS
    first_group = split * num_groups // SPLITS
    last_group = (split + 1) * num_groups // SPLITS

    # A row of tiles (128 rows of the weight) has 2048 words per group; a tile may have several or half of one.
    tile_words: tl.constexpr = BLOCK_N * 16
    row_words: tl.constexpr = tile_words if tile_words < 2048 else 2048
    first_row = tile_n * BLOCK_N
    tiles_at = words_ptr + (first_row // 128).to(tl.int64) * num_groups * 2048 + first_row % 128 * 16
    if STARTS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    if STARTS_EARLY and FETCH_GROUPS > 0:
        for row in tl.static_range(tile_words // row_words):
            fetched = tl.minimum(last_group - first_group, FETCH_GROUPS) * (row_words * 4)
            at = tiles_at + (row * num_groups + first_group) * 2048
            tl.inline_asm_elementwise(
                FETCH, "=r,l,r", [at.to(tl.int64), fetched], dtype=tl.int32, is_pure=False, pack=1
            )

    word = tl.arange(0, tile_words)
    words_at = tiles_at + (word // row_words * num_groups * 2048 + word % row_words)
    row_T = tile_t * BLOCK_T + tl.arange(0, BLOCK_T)
    row_N = first_row + tl.arange(0, BLOCK_N)
    k = tl.arange(0, 128)
    x_at = x_ptr + (row_T.to(tl.int64) * (x_units * X_UNIT))[None, :] + k[:, None]
    valid_T = row_T < num_rows
    if STARTS_EARLY:
        tl.extra.cuda.gdc_wait()

    total = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
    for group in tl.range(first_group, last_group, num_stages=STAGES):
        words = tl.load(words_at + group * 2048)
        if MASK_K:
            mask = valid_T[None, :] & (k < in_features - group * 128)[:, None]
        else:
            mask = valid_T[None, :]
        x_KT = tl.load(x_at + group * 128, mask=mask, other=0.0)
        pairs = group // 2 * padded_features + first_row
        scale_N = _to_fp32(_half_of_group(tl.load(scales_ptr + pairs + tl.arange(0, BLOCK_N)), group), HALF)
        if zeros_ptr is not None:
            numbers_NK = _tile(words, zeros_ptr + group * padded_features + first_row, BLOCK_N, INTERPRETING)
        else:
            numbers_NK = _tile(words, None, BLOCK_N, INTERPRETING)
        if INTERPRETING:
            x_KT = x_KT.to(tl.float32)  # its product of bf16 is wrong
        total += tl.dot(numbers_NK, x_KT) * scale_N[:, None]

    out_at = out_ptr + row_T.to(tl.int64)[:, None] * out_features + row_N[None, :]
    mask = valid_T[:, None] & (row_N < out_features)[None, :]
    total_TN = tl.trans(total)
    if SPLITS > 1:
        tile = tile_n * tiles_t + tile_t
        inner = tl.arange(0, BLOCK_T)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        shares_at = partial_ptr + tile.to(tl.int64) * (SPLITS * BLOCK_T * BLOCK_N) + inner
        tl.store(shares_at + split * (BLOCK_T * BLOCK_N), total_TN, mask=valid_T[:, None])
        tl.debug_barrier()  # the whole block has stored before it counts as arrived
        arrived = tl.atomic_add(arrivals_ptr + tile, 1, sem="acq_rel")
        if arrived < SPLITS - 1:
            return
        tl.store(arrivals_ptr + tile, 0)
        total_TN = tl.zeros((BLOCK_T, BLOCK_N), tl.float32)
        for share in tl.static_range(SPLITS):
            total_TN += tl.load(
                shares_at + share * (BLOCK_T * BLOCK_N), mask=valid_T[:, None], other=0.0, cache_modifier=".cg"
            )
    if bias_ptr is not None:
        total_TN += tl.load(bias_ptr + row_N, mask=row_N < out_features, other=0.0)[None, :]
    tl.store(out_at, total_TN.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def dequantize_kernel(
    words_ptr,
    scales_ptr,
    zeros_ptr,
    out_ptr,
    num_groups,
    out_features,
    padded_features,
    in_features,
    BLOCK_N: tl.constexpr,
    HALF: tl.constexpr,
    INTERPRETING: tl.constexpr,
):
    """Semantics: out[n, k] = (code[n, k] - zero[n, k / 128]) * scale[n, k / 128].

    One program writes `BLOCK_N` rows of one group.

    Args:
        words_ptr, scales_ptr, zeros_ptr: see `Int4Weight`; zeros_ptr may be None.
        out_ptr: bf16 [out_features, in_features], contiguous.
    """
    group = tl.program_id(0)
    first_row = tl.program_id(1) * BLOCK_N
    row_N = first_row + tl.arange(0, BLOCK_N)
    at = words_ptr + ((first_row // 128).to(tl.int64) * num_groups + group) * 2048 + first_row % 128 * 16
    words = tl.load(at + tl.arange(0, BLOCK_N * 16))
    pairs = group // 2 * padded_features + first_row
    scale_N = _to_fp32(_half_of_group(tl.load(scales_ptr + pairs + tl.arange(0, BLOCK_N)), group), HALF)
    if zeros_ptr is not None:
        numbers_NK = _tile(words, zeros_ptr + group * padded_features + first_row, BLOCK_N, INTERPRETING)
    else:
        numbers_NK = _tile(words, None, BLOCK_N, INTERPRETING)
    value_NK = numbers_NK.to(tl.float32) * scale_N[:, None]
    k = group * 128 + tl.arange(0, 128)
    out_at = out_ptr + row_N.to(tl.int64)[:, None] * in_features + k[None, :]
    mask = (row_N < out_features)[:, None] & (k < in_features)[None, :]
    tl.store(out_at, value_NK.to(out_ptr.dtype.element_ty), mask=mask)


def _compilation(architectures: tuple[int, ...], with_zeros: bool, half: bool, **constexprs: Any) -> Compilation:
    early = min(architectures) >= 90
    signature = {
        "x_ptr": "*bf16",
        "words_ptr": "*i32",
        "scales_ptr": "*i32",
        "out_ptr": "*bf16",
        "partial_ptr": "*fp32",
        "arrivals_ptr": "*i32",
        **dict.fromkeys(
            ("num_rows", "num_groups", "x_units", "out_features", "padded_features", "in_features"), "i32"
        ),
    }
    absent: dict[str, Any] = {"bias_ptr": None}
    if with_zeros:
        signature["zeros_ptr"] = "*i32"
    else:
        absent["zeros_ptr"] = None
    fixed = {"HALF": half, "STARTS_EARLY": early, "INTERPRETING": False, "X_UNIT": 8, "MASK_K": False}
    num_warps = constexprs.pop("num_warps")
    return Compilation(
        linear_int4_kernel,
        signature,
        {**absent, **fixed, **constexprs},
        num_warps=num_warps,
        num_stages=constexprs["STAGES"],
        architectures=architectures,
    )
