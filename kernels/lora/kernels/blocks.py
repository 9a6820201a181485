"""LoRA for slots with more rows: pieces of 8 or 16 on tensor cores, a program to a piece.

Owns the kernels that compute the transpose of what they are asked for: ranks and columns are the long side of
a tensor core's tile, of which there are 16 at least, rows of the batch the short one, of which 8 suffice.
Partial sums, lists and look-ups as in `few`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.lora.kernels.slots import find_columns, load_piece, load_weights, look_up, look_up_module


@triton.jit
def _shrink_piece(
    x_ptr, partials_ptr, bytes_ptr, bf16_ptr, factors_ptr, offset, row, place, valid, rank, split, part,
    K: tl.constexpr, X_STRIDE: tl.constexpr, SPAN: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, RANK_STRIDE: tl.constexpr, PLACE_STRIDE: tl.constexpr,
    IS_E4M3: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    for start in tl.range(part * BLOCK_R, rank, PARTS * BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        inside = r < rank
        shrunk = tl.zeros([BLOCK_R, ROWS], tl.float32)
        for done in tl.range(0, SPAN, BLOCK_K):
            k = split * SPAN + done + tl.arange(0, BLOCK_K)
            a_mask, x_mask = inside[:, None], valid[None, :]
            if K % SPAN != 0:
                a_mask, x_mask = a_mask & (k < K)[None, :], x_mask & (k < K)[:, None]
            index = r[:, None] * K + k[None, :]
            a = load_weights(bytes_ptr, bf16_ptr, offset, index, a_mask, IS_E4M3, COMPUTE)
            x = tl.load(x_ptr + row[None, :] * X_STRIDE + k[:, None], mask=x_mask, other=0.0).to(COMPUTE)
            shrunk = tl.dot(a, x, shrunk)
        shrunk *= tl.load(factors_ptr + r, mask=inside, other=0.0)[:, None]
        at = partials_ptr + place[None, :] * PLACE_STRIDE + split * RANK_STRIDE + r[:, None]
        tl.store(at, shrunk, mask=inside[:, None] & valid[None, :])


@triton.jit(do_not_specialize=["place", "num_slots"])
def shrink_blocks(
    x_ptr, partials_ptr, bytes_ptr, bf16_ptr, fp32_ptr, offsets_ptr, ranks_ptr, blocks_ptr, order_ptr, place,
    num_slots, K: tl.constexpr, X_STRIDE: tl.constexpr, SPAN: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, RANK_STRIDE: tl.constexpr,
    PLACE_STRIDE: tl.constexpr, WITH_E4M3: tl.constexpr, COMPUTE: tl.constexpr, STARTS_EARLY: tl.constexpr,
):  # fmt: skip
    """Semantics and args: as `few.shrink_few`, with pieces of up to ROWS rows; BLOCK_K columns at a time.

    Grid: (pieces that there may be, K / SPAN, PARTS).
    """
    piece, split, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if STARTS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    slot, first, rows = load_piece(blocks_ptr, piece)
    offset, factors, rank, e4m3 = look_up(offsets_ptr, ranks_ptr, place * num_slots + slot)
    m = tl.arange(0, ROWS)
    valid = m < rows
    row = tl.load(order_ptr + first + m, mask=valid, other=0).to(tl.int64)
    where = (first + m).to(tl.int64)
    if STARTS_EARLY:
        tl.extra.cuda.gdc_wait()
    if rows > 0:
        if e4m3 == 0:
            _shrink_piece(
                x_ptr, partials_ptr, bytes_ptr, bf16_ptr, fp32_ptr + factors, offset, row, where, valid, rank,
                split, part, K, X_STRIDE, SPAN, PARTS, ROWS, BLOCK_R, BLOCK_K, RANK_STRIDE, PLACE_STRIDE,
                False, COMPUTE,
            )  # fmt: skip
        elif WITH_E4M3:
            _shrink_piece(
                x_ptr, partials_ptr, bytes_ptr, bf16_ptr, fp32_ptr + factors, offset, row, where, valid, rank,
                split, part, K, X_STRIDE, SPAN, PARTS, ROWS, BLOCK_R, BLOCK_K, RANK_STRIDE, PLACE_STRIDE,
                True, COMPUTE,
            )  # fmt: skip


@triton.jit
def _expand_piece(
    out_ptr, scale_ptr, partials_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows, rank, columns,
    begin, OUT_STRIDE: tl.constexpr, RANK_STRIDE: tl.constexpr, PLACE_STRIDE: tl.constexpr,
    SPLITS: tl.constexpr, ROWS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
    EVEN_N: tl.constexpr, IS_E4M3: tl.constexpr, COMPUTE: tl.constexpr, STARTS_EARLY: tl.constexpr,
):  # fmt: skip
    m = tl.arange(0, ROWS)
    n = begin + tl.arange(0, BLOCK_N)
    r = tl.arange(0, BLOCK_R)
    live, valid = m < rows, n < columns
    row = tl.load(order_ptr + first + m, mask=live, other=0).to(tl.int64)
    mask = (r < rank)[:, None] if EVEN_N else (r < rank)[:, None] & valid[None, :]
    index = r[:, None] * columns + n[None, :]
    b = load_weights(bytes_ptr, bf16_ptr, offset, index, mask, IS_E4M3, COMPUTE)
    if STARTS_EARLY:
        tl.extra.cuda.gdc_wait()
    if rank > 0:
        out_at = out_ptr + row[:, None] * OUT_STRIDE + n[None, :]
        out_mask = live[:, None] if EVEN_N else live[:, None] & valid[None, :]
        old = tl.load(out_at, mask=out_mask, other=0.0)
        delta = tl.zeros([BLOCK_N, ROWS], tl.float32)
        from_ptr = partials_ptr + (first + m).to(tl.int64)[None, :] * PLACE_STRIDE
        for _ in tl.range(0, rank, BLOCK_R, num_stages=1):
            at = from_ptr + r[:, None]
            mask = (r < rank)[:, None] & live[None, :]
            shrunk = tl.load(at, mask=mask, other=0.0)
            for split in tl.static_range(1, SPLITS):
                shrunk += tl.load(at + split * RANK_STRIDE, mask=mask, other=0.0)
            delta = tl.dot(tl.trans(b), shrunk.to(COMPUTE), delta)
            r += BLOCK_R
            mask = (r < rank)[:, None] if EVEN_N else (r < rank)[:, None] & valid[None, :]
            index = r[:, None] * columns + n[None, :]
            b = load_weights(bytes_ptr, bf16_ptr, offset, index, mask, IS_E4M3, COMPUTE)
        added = tl.trans(delta)
        if scale_ptr is not None:
            added *= 1.0 / tl.load(scale_ptr + row, mask=live, other=1.0)[:, None]
        tl.store(out_at, (old.to(tl.float32) + added).to(out_ptr.dtype.element_ty), mask=out_mask)


@triton.jit(do_not_specialize=["place", "num_slots"])
def expand_blocks(
    out_ptr, scale_ptr, partials_ptr, bytes_ptr, bf16_ptr, offsets_ptr, ranks_ptr, blocks_ptr, order_ptr,
    place, num_slots, OUT_STRIDE: tl.constexpr, N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr,
    ALIGN: tl.constexpr, RANK_STRIDE: tl.constexpr, PLACE_STRIDE: tl.constexpr, SPLITS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, WITH_E4M3: tl.constexpr,
    COMPUTE: tl.constexpr, STARTS_EARLY: tl.constexpr,
):  # fmt: skip
    """Semantics and args: as `few.expand_few`, with pieces of up to ROWS rows.

    Grid: (tiles of BLOCK_N columns, pieces that there may be).
    """
    EVEN_N: tl.constexpr = (N0 % BLOCK_N == 0) and (N1 % BLOCK_N == 0) and (N2 % BLOCK_N == 0)
    if STARTS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    module, tile, columns, start = find_columns(tl.program_id(0), N0, N1, N2, BLOCK_N, ALIGN)
    slot, first, rows = load_piece(blocks_ptr, tl.program_id(1))
    offset, rank_start, rank, e4m3 = look_up_module(offsets_ptr, ranks_ptr, place * num_slots + slot, module)
    rank = tl.where(rows > 0, rank, 0)
    if e4m3 == 0:
        _expand_piece(
            out_ptr + start, scale_ptr, partials_ptr + rank_start, bytes_ptr, bf16_ptr, order_ptr, offset,
            first, rows, rank, columns, tile * BLOCK_N, OUT_STRIDE, RANK_STRIDE, PLACE_STRIDE, SPLITS, ROWS,
            BLOCK_R, BLOCK_N, EVEN_N, False, COMPUTE, STARTS_EARLY,
        )  # fmt: skip
    elif WITH_E4M3:
        _expand_piece(
            out_ptr + start, scale_ptr, partials_ptr + rank_start, bytes_ptr, bf16_ptr, order_ptr, offset,
            first, rows, rank, columns, tile * BLOCK_N, OUT_STRIDE, RANK_STRIDE, PLACE_STRIDE, SPLITS, ROWS,
            BLOCK_R, BLOCK_N, EVEN_N, True, COMPUTE, STARTS_EARLY,
        )  # fmt: skip
