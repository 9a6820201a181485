"""LoRA for slots with few rows: sums of the vector units, a program to a piece of a slot's rows.

Owns the kernels for pieces of 1, 2 or 4 rows. A program of shrink has some columns of x, which it reads once,
and every rank; what it leaves are partial sums, added up by expand. A program of expand has some columns of
the output, and reads B once for all rows of the piece. Weights are asked for before the launch before this
one has ended. Places on the list beyond its end have no rows: nobody reads how long it is.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.backend import INTERPRETING
from kernels.lora.kernels.slots import find_columns, load_weights, look_up, look_up_module

ONE_BY_ONE = tl.constexpr(INTERPRETING)
"""The interpreter calls a function for every number of a sum that is not `tl.sum`."""


@triton.jit
def _add_two(a0, a1, b0, b1):
    return a0 + b0, a1 + b1


@triton.jit
def _add_four(a0, a1, a2, a3, b0, b1, b2, b3):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3


@triton.jit
def _sums(a, x0, x1, x2, x3, AXIS: tl.constexpr, ROWS: tl.constexpr):
    """Of a * x along an axis, for each x. Together: one after another, all of `a` would stay in fp32."""
    a = a.to(tl.float32)
    if ROWS == 1:
        sum0 = tl.sum(a * x0, AXIS)
        return sum0, sum0, sum0, sum0
    if ONE_BY_ONE:
        return tl.sum(a * x0, AXIS), tl.sum(a * x1, AXIS), tl.sum(a * x2, AXIS), tl.sum(a * x3, AXIS)
    if ROWS == 2:
        sum0, sum1 = tl.reduce((a * x0, a * x1), AXIS, _add_two)
        return sum0, sum1, sum0, sum1
    return tl.reduce((a * x0, a * x1, a * x2, a * x3), AXIS, _add_four)


@triton.jit
def load_few(few_ptr, piece):
    """slot, first place in `order`, rows, and the 4 rows themselves, the last one repeated."""
    ptr = few_ptr + piece * 8
    slot, first, rows = tl.load(ptr), tl.load(ptr + 1), tl.load(ptr + 2)
    row0, row1, row2, row3 = tl.load(ptr + 3), tl.load(ptr + 4), tl.load(ptr + 5), tl.load(ptr + 6)
    return slot, first, rows, row0, row1, row2, row3


@triton.jit
def _load_x(x_ptr, row, k, X_STRIDE: tl.constexpr, K: tl.constexpr, SPAN: tl.constexpr):
    at = x_ptr + row.to(tl.int64) * X_STRIDE + k
    if K % SPAN == 0:
        return tl.load(at).to(tl.float32)
    return tl.load(at, mask=k < K, other=0.0).to(tl.float32)


@triton.jit
def _load_a(
    bytes_ptr, bf16_ptr, offset, r, rank, k, K: tl.constexpr, SPAN: tl.constexpr, IS_E4M3: tl.constexpr
):
    mask = (r < rank)[:, None] & (k < K)[None, :] if K % SPAN else (r < rank)[:, None]
    return load_weights(bytes_ptr, bf16_ptr, offset, r[:, None] * K + k[None, :], mask, IS_E4M3, tl.bfloat16)


@triton.jit
def _store_sums(
    out_ptr, a, x0, x1, x2, x3, factors_ptr, r, rank, rows, STRIDE: tl.constexpr, ROWS: tl.constexpr
):
    """Of some rows of A with each row of x, which are [1, SPAN]."""
    inside = r < rank
    factor = tl.load(factors_ptr + r, mask=inside, other=0.0)
    sum0, sum1, sum2, sum3 = _sums(a, x0, x1, x2, x3, 1, ROWS)
    tl.store(out_ptr + r, sum0 * factor, mask=inside)
    if ROWS > 1:
        tl.store(out_ptr + STRIDE + r, sum1 * factor, mask=inside & (rows > 1))
    if ROWS > 2:
        tl.store(out_ptr + 2 * STRIDE + r, sum2 * factor, mask=inside & (rows > 2))
        tl.store(out_ptr + 3 * STRIDE + r, sum3 * factor, mask=inside & (rows > 3))


@triton.jit
def _shrink_piece(
    x_ptr, partials_ptr, bytes_ptr, bf16_ptr, factors_ptr, offset, first, rows, row0, row1, row2, row3, rank,
    split, part, K: tl.constexpr, X_STRIDE: tl.constexpr, SPAN: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_R: tl.constexpr, RANK_STRIDE: tl.constexpr, PLACE_STRIDE: tl.constexpr,
    IS_E4M3: tl.constexpr, STARTS_EARLY: tl.constexpr,
):  # fmt: skip
    k = split * SPAN + tl.arange(0, SPAN)
    r = part * BLOCK_R + tl.arange(0, BLOCK_R)
    a = _load_a(bytes_ptr, bf16_ptr, offset, r, rank, k, K, SPAN, IS_E4M3)
    if STARTS_EARLY:
        tl.extra.cuda.gdc_wait()
    if part * BLOCK_R < rank:
        x0 = _load_x(x_ptr, row0, k, X_STRIDE, K, SPAN)[None, :]
        x1, x2, x3 = x0, x0, x0
        if ROWS > 1:
            x1 = _load_x(x_ptr, row1, k, X_STRIDE, K, SPAN)[None, :]
        if ROWS > 2:
            x2 = _load_x(x_ptr, row2, k, X_STRIDE, K, SPAN)[None, :]
            x3 = _load_x(x_ptr, row3, k, X_STRIDE, K, SPAN)[None, :]
        out_ptr = partials_ptr + first.to(tl.int64) * PLACE_STRIDE + split * RANK_STRIDE
        _store_sums(out_ptr, a, x0, x1, x2, x3, factors_ptr, r, rank, rows, PLACE_STRIDE, ROWS)
        for start in tl.range((part + PARTS) * BLOCK_R, rank, PARTS * BLOCK_R):
            r = start + tl.arange(0, BLOCK_R)
            a = _load_a(bytes_ptr, bf16_ptr, offset, r, rank, k, K, SPAN, IS_E4M3)
            _store_sums(out_ptr, a, x0, x1, x2, x3, factors_ptr, r, rank, rows, PLACE_STRIDE, ROWS)


@triton.jit(do_not_specialize=["place", "num_slots"])
def shrink_few(
    x_ptr, partials_ptr, bytes_ptr, bf16_ptr, fp32_ptr, offsets_ptr, ranks_ptr, pairs_ptr, place, num_slots,
    K: tl.constexpr, X_STRIDE: tl.constexpr, SPAN: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_R: tl.constexpr, RANK_STRIDE: tl.constexpr, PLACE_STRIDE: tl.constexpr, WITH_E4M3: tl.constexpr,
    STARTS_EARLY: tl.constexpr,
):  # fmt: skip
    """Semantics: partials[p, c, r] = f[slot][r] * sum over k of span c of x[order[p], k] * A[slot][r, k].

    Args:
        x_ptr: [T, K], rows X_STRIDE apart. partials_ptr: fp32, places PLACE_STRIDE apart, spans RANK_STRIDE.
        bytes_ptr, bf16_ptr, fp32_ptr: the arena, thrice.
        offsets_ptr, ranks_ptr: AdapterTable; `place` is layer * G + group. pairs_ptr: DeviceWork.
        SPAN: columns of a program. PARTS: programs that share the ranks, BLOCK_R at a time.
        ROWS: of a piece, at most; 1, 2 or 4.

    Grid: (pieces that there may be, K / SPAN, PARTS). Source: Chen et al., "Punica", arXiv 2310.18547.
    """
    if STARTS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    piece, split, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot, first, rows, row0, row1, row2, row3 = load_few(pairs_ptr, piece)
    offset, factors, rank, e4m3 = look_up(offsets_ptr, ranks_ptr, place * num_slots + slot)
    rank = tl.where(rows > 0, rank, 0)
    if e4m3 == 0:
        _shrink_piece(
            x_ptr, partials_ptr, bytes_ptr, bf16_ptr, fp32_ptr + factors, offset, first, rows, row0, row1,
            row2, row3, rank, split, part, K, X_STRIDE, SPAN, PARTS, ROWS, BLOCK_R, RANK_STRIDE, PLACE_STRIDE,
            False, STARTS_EARLY,
        )  # fmt: skip
    elif WITH_E4M3:
        _shrink_piece(
            x_ptr, partials_ptr, bytes_ptr, bf16_ptr, fp32_ptr + factors, offset, first, rows, row0, row1,
            row2, row3, rank, split, part, K, X_STRIDE, SPAN, PARTS, ROWS, BLOCK_R, RANK_STRIDE, PLACE_STRIDE,
            True, STARTS_EARLY,
        )  # fmt: skip


@triton.jit
def _add_up(at, mask, RANK_STRIDE: tl.constexpr, SPLITS: tl.constexpr, BLOCK_S: tl.constexpr):
    """Sum over the spans, in a fixed order. at, mask: [BLOCK_R]."""
    s = tl.arange(0, BLOCK_S)
    mask = (s < SPLITS)[:, None] & mask[None, :]
    return tl.sum(tl.load(at[None, :] + s[:, None] * RANK_STRIDE, mask=mask, other=0.0), 0)


@triton.jit
def _add_to_row(out_ptr, scale_ptr, row, n, columns, delta, OUT_STRIDE: tl.constexpr, EVEN_N: tl.constexpr):
    at = out_ptr + row.to(tl.int64) * OUT_STRIDE + n
    mask = None if EVEN_N else n < columns
    if scale_ptr is not None:
        delta *= 1.0 / tl.load(scale_ptr + row)
    tl.store(at, (tl.load(at, mask=mask).to(tl.float32) + delta).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _load_b(
    bytes_ptr, bf16_ptr, offset, r, rank, n, columns, EVEN_N: tl.constexpr, IS_E4M3: tl.constexpr
):  # fmt: skip
    mask = (r < rank)[:, None] if EVEN_N else (r < rank)[:, None] & (n < columns)[None, :]
    index = r[:, None] * columns + n[None, :]
    return load_weights(bytes_ptr, bf16_ptr, offset, index, mask, IS_E4M3, tl.bfloat16)


@triton.jit
def _add_products(
    delta0, delta1, delta2, delta3, from_ptr, b, r, rank, rows, PLACE_STRIDE: tl.constexpr,
    RANK_STRIDE: tl.constexpr, SPLITS: tl.constexpr, BLOCK_S: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    inside = r < rank
    from_ptr += r
    x0 = _add_up(from_ptr, inside, RANK_STRIDE, SPLITS, BLOCK_S)[:, None]
    x1, x2, x3 = x0, x0, x0
    if ROWS > 1:
        from_ptr += PLACE_STRIDE
        x1 = _add_up(from_ptr, inside & (rows > 1), RANK_STRIDE, SPLITS, BLOCK_S)[:, None]
    if ROWS > 2:
        from_ptr += PLACE_STRIDE
        x2 = _add_up(from_ptr, inside & (rows > 2), RANK_STRIDE, SPLITS, BLOCK_S)[:, None]
        from_ptr += PLACE_STRIDE
        x3 = _add_up(from_ptr, inside & (rows > 3), RANK_STRIDE, SPLITS, BLOCK_S)[:, None]
    sum0, sum1, sum2, sum3 = _sums(b, x0, x1, x2, x3, 0, ROWS)
    return delta0 + sum0, delta1 + sum1, delta2 + sum2, delta3 + sum3


@triton.jit
def _expand_piece(
    out_ptr, scale_ptr, partials_ptr, bytes_ptr, bf16_ptr, offset, first, rows, row0, row1, row2, row3, rank,
    columns, begin, OUT_STRIDE: tl.constexpr, RANK_STRIDE: tl.constexpr, PLACE_STRIDE: tl.constexpr,
    SPLITS: tl.constexpr, BLOCK_S: tl.constexpr, ROWS: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr, EVEN_N: tl.constexpr, IS_E4M3: tl.constexpr, STARTS_EARLY: tl.constexpr,
):  # fmt: skip
    n = begin + tl.arange(0, BLOCK_N)
    r = tl.arange(0, BLOCK_R)
    b = _load_b(bytes_ptr, bf16_ptr, offset, r, rank, n, columns, EVEN_N, IS_E4M3)
    if STARTS_EARLY:
        tl.extra.cuda.gdc_wait()
    if rank > 0:
        from_ptr = partials_ptr + first.to(tl.int64) * PLACE_STRIDE
        zero = tl.zeros([BLOCK_N], tl.float32)
        delta0, delta1, delta2, delta3 = _add_products(
            zero, zero, zero, zero, from_ptr, b, r, rank, rows, PLACE_STRIDE, RANK_STRIDE, SPLITS, BLOCK_S,
            ROWS,
        )  # fmt: skip
        for start in tl.range(BLOCK_R, rank, BLOCK_R):
            r = start + tl.arange(0, BLOCK_R)
            b = _load_b(bytes_ptr, bf16_ptr, offset, r, rank, n, columns, EVEN_N, IS_E4M3)
            delta0, delta1, delta2, delta3 = _add_products(
                delta0, delta1, delta2, delta3, from_ptr, b, r, rank, rows, PLACE_STRIDE, RANK_STRIDE, SPLITS,
                BLOCK_S, ROWS,
            )  # fmt: skip
        _add_to_row(out_ptr, scale_ptr, row0, n, columns, delta0, OUT_STRIDE, EVEN_N)
        if ROWS > 1 and rows > 1:
            _add_to_row(out_ptr, scale_ptr, row1, n, columns, delta1, OUT_STRIDE, EVEN_N)
        if ROWS > 2:
            if rows > 2:
                _add_to_row(out_ptr, scale_ptr, row2, n, columns, delta2, OUT_STRIDE, EVEN_N)
            if rows > 3:
                _add_to_row(out_ptr, scale_ptr, row3, n, columns, delta3, OUT_STRIDE, EVEN_N)


@triton.jit(do_not_specialize=["place", "num_slots"])
def expand_few(
    out_ptr, scale_ptr, partials_ptr, bytes_ptr, bf16_ptr, offsets_ptr, ranks_ptr, pairs_ptr, place,
    num_slots, OUT_STRIDE: tl.constexpr, N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr,
    ALIGN: tl.constexpr, RANK_STRIDE: tl.constexpr, PLACE_STRIDE: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_S: tl.constexpr, ROWS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
    WITH_E4M3: tl.constexpr, STARTS_EARLY: tl.constexpr,
):  # fmt: skip
    """Semantics: out[order[p], n] += sum over r of (sum over c of partials[p, c, r]) * B[slot][r, n]
        / (scale[order[p]] or 1), r running over the ranks of n's module.

    Args:
        out_ptr: [T, N0 + N1 + N2], rows OUT_STRIDE apart; the modules' columns side by side.
        scale_ptr: fp32 [T] or None. The rest as in `shrink_few`.
        ALIGN: a power of two that divides N0, N1 and N2.
        SPLITS: spans of shrink; BLOCK_S the power of two from there.
        BLOCK_R, BLOCK_N: ranks and columns at a time.

    Grid: (tiles of BLOCK_N columns, pieces that there may be): the tiles of a piece follow one another, so
        that their look-ups meet in a cache. Source: Chen et al., "Punica", arXiv 2310.18547.
    """
    EVEN_N: tl.constexpr = (N0 % BLOCK_N == 0) and (N1 % BLOCK_N == 0) and (N2 % BLOCK_N == 0)
    if STARTS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    module, tile, columns, start = find_columns(tl.program_id(0), N0, N1, N2, BLOCK_N, ALIGN)
    slot, first, rows, row0, row1, row2, row3 = load_few(pairs_ptr, tl.program_id(1))
    offset, rank_start, rank, e4m3 = look_up_module(offsets_ptr, ranks_ptr, place * num_slots + slot, module)
    rank = tl.where(rows > 0, rank, 0)
    if e4m3 == 0:
        _expand_piece(
            out_ptr + start, scale_ptr, partials_ptr + rank_start, bytes_ptr, bf16_ptr, offset, first, rows,
            row0, row1, row2, row3, rank, columns, tile * BLOCK_N, OUT_STRIDE, RANK_STRIDE, PLACE_STRIDE,
            SPLITS, BLOCK_S, ROWS, BLOCK_R, BLOCK_N, EVEN_N, False, STARTS_EARLY,
        )  # fmt: skip
    elif WITH_E4M3:
        _expand_piece(
            out_ptr + start, scale_ptr, partials_ptr + rank_start, bytes_ptr, bf16_ptr, offset, first, rows,
            row0, row1, row2, row3, rank, columns, tile * BLOCK_N, OUT_STRIDE, RANK_STRIDE, PLACE_STRIDE,
            SPLITS, BLOCK_S, ROWS, BLOCK_R, BLOCK_N, EVEN_N, True, STARTS_EARLY,
        )  # fmt: skip
