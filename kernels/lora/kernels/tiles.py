"""LoRA for prefill chunks: tiles of up to 64 rows of one slot on tensor cores.

Owns the kernels for slots with more rows than an item has. They are launched in large buckets only, beside
those for items, over a list of their own. What counts here is x and the outputs, read and written once; a
tile's weights come from the L2 cache.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.lora.kernels.slots import find_columns, load_weights, look_up, look_up_module


@triton.jit
def _shrink_tile(
    x_ptr, partials_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows, rank, begin, x_stride,
    K: tl.constexpr, SPAN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
    ROW_STRIDE: tl.constexpr, IS_E4M3: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    m = tl.arange(0, BLOCK_M)
    valid = m < rows
    row = tl.load(order_ptr + first + m, mask=valid, other=0).to(tl.int64)
    for start in tl.range(0, rank, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        inside = r < rank
        shrunk = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
        for done in tl.range(0, SPAN, BLOCK_K):
            k = begin + done + tl.arange(0, BLOCK_K)
            x_mask, a_mask = valid[:, None], inside[None, :]
            if K % SPAN != 0 or SPAN % BLOCK_K != 0:
                x_mask, a_mask = x_mask & (k < K)[None, :], a_mask & (k < K)[:, None]
            x = tl.load(x_ptr + row[:, None] * x_stride + k[None, :], mask=x_mask, other=0.0).to(COMPUTE)
            a = load_weights(
                bytes_ptr, bf16_ptr, offset, r[None, :] * K + k[:, None], a_mask, IS_E4M3, COMPUTE
            )
            shrunk = tl.dot(x, a, shrunk)
        at = partials_ptr + (first + m).to(tl.int64)[:, None] * ROW_STRIDE + r[None, :]
        tl.store(at, shrunk, mask=valid[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["place", "num_slots"])
def shrink_tiles(
    x_ptr, partials_ptr, bytes_ptr, bf16_ptr, offsets_ptr, ranks_ptr, counts_ptr, tiles_ptr, order_ptr,
    place, num_slots, x_stride,
    K: tl.constexpr, SPLITS: tl.constexpr, SPAN: tl.constexpr, RANK_STRIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, WITH_E4M3: tl.constexpr,
    COMPUTE: tl.constexpr, STARTS_EARLY: tl.constexpr,
):  # fmt: skip
    """Semantics: partials[p, s, r] = sum over k in span s of x[order[p], k] * A[slot][r, k].

    Args: as `shrink_rows`; tiles of up to BLOCK_M rows in place of items, SPLITS spans of SPAN columns.

    Grid: (most tiles of the bucket, SPLITS).
    """
    if STARTS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    tile, split = tl.program_id(0), tl.program_id(1)
    if tile < tl.load(counts_ptr + 1):
        tile_ptr = tiles_ptr + tile * 4
        slot, first, rows = tl.load(tile_ptr), tl.load(tile_ptr + 1), tl.load(tile_ptr + 2)
        offset, rank, e4m3 = look_up(offsets_ptr, ranks_ptr, place * num_slots + slot)
        sums_ptr = partials_ptr + split * RANK_STRIDE
        if e4m3 == 0:
            _shrink_tile(
                x_ptr, sums_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows, rank, split * SPAN,
                x_stride, K, SPAN, BLOCK_M, BLOCK_R, BLOCK_K, SPLITS * RANK_STRIDE, False, COMPUTE,
            )  # fmt: skip
        elif WITH_E4M3:
            _shrink_tile(
                x_ptr, sums_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows, rank, split * SPAN,
                x_stride, K, SPAN, BLOCK_M, BLOCK_R, BLOCK_K, SPLITS * RANK_STRIDE, True, COMPUTE,
            )  # fmt: skip


@triton.jit
def _load_shrunk(
    partials_ptr, factors_ptr, first, m, valid, rank_start, r, inside,
    SPLITS: tl.constexpr, RANK_STRIDE: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    at = partials_ptr + (first + m).to(tl.int64)[:, None] * (SPLITS * RANK_STRIDE) + (rank_start + r)[None, :]
    mask = valid[:, None] & inside[None, :]
    shrunk = tl.load(at, mask=mask, other=0.0)
    for split in tl.static_range(1, SPLITS):
        shrunk += tl.load(at + split * RANK_STRIDE, mask=mask, other=0.0)
    factor = tl.load(factors_ptr + rank_start + r, mask=inside, other=0.0)
    return (shrunk * factor[None, :]).to(COMPUTE)


@triton.jit
def _expand_tile(
    out_ptr, scale_ptr, partials_ptr, factors_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows,
    rank_start, rank, columns, begin, out_stride,
    SPLITS: tl.constexpr, RANK_STRIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr, STRETCH: tl.constexpr, EVEN_N: tl.constexpr, IS_E4M3: tl.constexpr,
    COMPUTE: tl.constexpr,
):  # fmt: skip
    m = tl.arange(0, BLOCK_M)
    live = m < rows
    row = tl.load(order_ptr + first + m, mask=live, other=0).to(tl.int64)
    inverse = tl.full([BLOCK_M], 1.0, tl.float32)
    if scale_ptr is not None:
        inverse = 1.0 / tl.load(scale_ptr + row, mask=live, other=1.0)
    r0 = tl.arange(0, BLOCK_R)
    shrunk0 = _load_shrunk(
        partials_ptr, factors_ptr, first, m, live, rank_start, r0, r0 < rank, SPLITS, RANK_STRIDE, COMPUTE
    )
    for start_n in tl.range(begin, tl.minimum(begin + STRETCH * BLOCK_N, columns), BLOCK_N):
        n = start_n + tl.arange(0, BLOCK_N)
        valid = n < columns
        out_at = out_ptr + row[:, None] * out_stride + n[None, :]
        mask = live[:, None] if EVEN_N else live[:, None] & valid[None, :]
        old = tl.load(out_at, mask=mask, other=0.0)
        b_mask = (r0 < rank)[:, None] if EVEN_N else (r0 < rank)[:, None] & valid[None, :]
        index = r0[:, None] * columns + n[None, :]
        b = load_weights(bytes_ptr, bf16_ptr, offset, index, b_mask, IS_E4M3, COMPUTE)
        delta = tl.dot(shrunk0, b)
        for start in tl.range(BLOCK_R, rank, BLOCK_R):
            r = start + r0
            b_mask = (r < rank)[:, None] if EVEN_N else (r < rank)[:, None] & valid[None, :]
            index = r[:, None] * columns + n[None, :]
            b = load_weights(bytes_ptr, bf16_ptr, offset, index, b_mask, IS_E4M3, COMPUTE)
            shrunk = _load_shrunk(
                partials_ptr, factors_ptr, first, m, live, rank_start, r, r < rank, SPLITS, RANK_STRIDE,
                COMPUTE,
            )  # fmt: skip
            delta = tl.dot(shrunk, b, delta)
        new = old.to(tl.float32) + delta * inverse[:, None]
        tl.store(out_at, new.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["place", "num_slots"])
def expand_tiles(
    out_ptr, scale_ptr, partials_ptr, bytes_ptr, bf16_ptr, fp32_ptr, offsets_ptr, ranks_ptr, counts_ptr,
    tiles_ptr, order_ptr, place, num_slots, out_stride,
    N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, BLOCK_N: tl.constexpr, STRETCH: tl.constexpr,
    ALIGN: tl.constexpr, SPLITS: tl.constexpr, RANK_STRIDE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr, WITH_E4M3: tl.constexpr, COMPUTE: tl.constexpr, STARTS_EARLY: tl.constexpr,
):  # fmt: skip
    """Semantics: as `expand_rows`, with what `shrink_tiles` wrote.

    Args: as `expand_rows`. STRETCH: tiles of BLOCK_N columns that one program adds to, one after the other.

    Grid: (most tiles of the bucket, stretches of all modules).
    """
    EVEN_N: tl.constexpr = (N0 % BLOCK_N == 0) and (N1 % BLOCK_N == 0) and (N2 % BLOCK_N == 0)
    if STARTS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    piece = tl.program_id(0)
    if piece < tl.load(counts_ptr + 1):
        tile_ptr = tiles_ptr + piece * 4
        slot, first, rows = tl.load(tile_ptr), tl.load(tile_ptr + 1), tl.load(tile_ptr + 2)
        module, stretch, columns, start = find_columns(tl.program_id(1), N0, N1, N2, STRETCH * BLOCK_N, ALIGN)
        offset, factors, rank_start, rank, e4m3 = look_up_module(
            offsets_ptr, ranks_ptr, place * num_slots + slot, module
        )
        begin = stretch * (STRETCH * BLOCK_N)
        if rank > 0:
            if e4m3 == 0:
                _expand_tile(
                    out_ptr + start, scale_ptr, partials_ptr, fp32_ptr + factors // 4, bytes_ptr, bf16_ptr,
                    order_ptr, offset, first, rows, rank_start, rank, columns, begin, out_stride,
                    SPLITS, RANK_STRIDE, BLOCK_M, BLOCK_R, BLOCK_N, STRETCH, EVEN_N, False, COMPUTE,
                )  # fmt: skip
            elif WITH_E4M3:
                _expand_tile(
                    out_ptr + start, scale_ptr, partials_ptr, fp32_ptr + factors // 4, bytes_ptr, bf16_ptr,
                    order_ptr, offset, first, rows, rank_start, rank, columns, begin, out_stride,
                    SPLITS, RANK_STRIDE, BLOCK_M, BLOCK_R, BLOCK_N, STRETCH, EVEN_N, True, COMPUTE,
                )  # fmt: skip
