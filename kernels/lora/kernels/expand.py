"""The expand of decoding rows: out += (shrunk * factor) B, for all modules of a group in one launch.

Owns the kernel for items of up to 16 rows of a slot; units of work (item, tile of columns) are taken off the
list as in `shrink`. A module that an adapter lacks costs a look at its rank.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.lora.kernels.slots import fetch_block, find_columns, load_weights, look_up_module


@triton.jit
def _sum_chunks(
    partials_ptr, place, r, inside, CHUNKS: tl.constexpr, PADDED: tl.constexpr, RANK_STRIDE: tl.constexpr
):
    """One row's shrunk values: the sum of its partials, all loaded at once."""
    c = tl.arange(0, PADDED)
    at = place.to(tl.int64) * (CHUNKS * RANK_STRIDE) + c[:, None] * RANK_STRIDE + r[None, :]
    return tl.sum(tl.load(partials_ptr + at, mask=(c < CHUNKS)[:, None] & inside[None, :], other=0.0), 0)


@triton.jit
def _add_row(out_ptr, scale_ptr, row, out_stride, n, delta, mask):
    """out[row, n] += delta / scale[row]."""
    if scale_ptr is not None:
        delta = delta / tl.load(scale_ptr + row)
    at = out_ptr + row * out_stride + n
    old = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    tl.store(at, (old + delta).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _expand_few(
    out_ptr, scale_ptr, partials_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, factors_ptr, first, rows,
    rank_start, rank, columns, n, out_stride,
    CHUNKS: tl.constexpr, PADDED: tl.constexpr, RANK_STRIDE: tl.constexpr, BLOCK_R: tl.constexpr,
    EVEN_N: tl.constexpr, IS_E4M3: tl.constexpr,
):  # fmt: skip
    """One or two rows on the vector units."""
    row0 = tl.load(order_ptr + first).to(tl.int64)
    row1 = tl.load(order_ptr + first + rows - 1).to(tl.int64)
    valid = n < columns
    delta0 = tl.zeros_like(n).to(tl.float32)
    delta1 = tl.zeros_like(n).to(tl.float32)
    for start in tl.range(0, rank, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        inside = r < rank
        mask = inside[:, None] if EVEN_N else inside[:, None] & valid[None, :]
        index = r[:, None] * columns + n[None, :]
        b = load_weights(bytes_ptr, bf16_ptr, offset, index, mask, IS_E4M3, tl.float32)
        factor = tl.load(factors_ptr + rank_start + r, mask=inside, other=0.0)
        shrunk0 = factor * _sum_chunks(
            partials_ptr, first, rank_start + r, inside, CHUNKS, PADDED, RANK_STRIDE
        )
        delta0 += tl.sum(b * shrunk0[:, None], 0)
        if rows > 1:
            shrunk1 = factor * _sum_chunks(
                partials_ptr, first + 1, rank_start + r, inside, CHUNKS, PADDED, RANK_STRIDE
            )
            delta1 += tl.sum(b * shrunk1[:, None], 0)
    _add_row(out_ptr, scale_ptr, row0, out_stride, n, delta0, valid)
    if rows > 1:
        _add_row(out_ptr, scale_ptr, row1, out_stride, n, delta1, valid)


@triton.jit
def _expand_dot(
    out_ptr, scale_ptr, partials_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, factors_ptr, first, rows,
    rank_start, rank, columns, n, out_stride,
    CHUNKS: tl.constexpr, RANK_STRIDE: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
    ITEM_ROWS: tl.constexpr, EVEN_N: tl.constexpr, IS_E4M3: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """Up to ITEM_ROWS rows on the tensor cores."""
    m = tl.arange(0, ITEM_ROWS)
    live = m < rows
    row = tl.load(order_ptr + first + m, mask=live, other=0).to(tl.int64)
    valid = n < columns
    delta = tl.zeros([ITEM_ROWS, BLOCK_N], tl.float32)
    for start in tl.range(0, rank, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        inside = r < rank
        mask = inside[:, None] if EVEN_N else inside[:, None] & valid[None, :]
        index = r[:, None] * columns + n[None, :]
        b = load_weights(bytes_ptr, bf16_ptr, offset, index, mask, IS_E4M3, COMPUTE)
        factor = tl.load(factors_ptr + rank_start + r, mask=inside, other=0.0)
        at = partials_ptr + (first + m).to(tl.int64)[:, None] * (CHUNKS * RANK_STRIDE)
        at += (rank_start + r)[None, :]
        shrunk = tl.zeros([ITEM_ROWS, BLOCK_R], tl.float32)
        for chunk in tl.static_range(CHUNKS):
            shrunk += tl.load(at + chunk * RANK_STRIDE, mask=live[:, None] & inside[None, :], other=0.0)
        delta = tl.dot((shrunk * factor[None, :]).to(COMPUTE), b, delta)
    if scale_ptr is not None:
        delta = delta / tl.load(scale_ptr + row, mask=live, other=1.0)[:, None]
    mask = live[:, None] if EVEN_N else live[:, None] & valid[None, :]
    out_at = out_ptr + row[:, None] * out_stride + n[None, :]
    old = tl.load(out_at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_at, (old + delta).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["place", "num_slots"])
def expand_rows(
    out_ptr, scale_ptr, partials_ptr, bytes_ptr, bf16_ptr, fp32_ptr, offsets_ptr, ranks_ptr, counts_ptr,
    items_ptr, order_ptr, place, num_slots, out_stride,
    N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, BLOCK_N: tl.constexpr, ALIGN: tl.constexpr,
    CHUNKS: tl.constexpr, PADDED: tl.constexpr, RANK_STRIDE: tl.constexpr, BLOCK_R: tl.constexpr,
    ITEM_ROWS: tl.constexpr, WITH_E4M3: tl.constexpr, COMPUTE: tl.constexpr, STARTS_EARLY: tl.constexpr,
):  # fmt: skip
    """Semantics: out[order[p], n] += sum over r of f[r] * (sum over c of partials[p, c, r]) * B[slot][r, n]
        / (scale[order[p]] or 1), r running over the ranks of n's module.

    Args:
        out_ptr: [T, N0 + N1 + N2], rows `out_stride` apart; the modules' columns side by side.
        scale_ptr: fp32 [T] or None. partials_ptr: what `shrink_rows` wrote.
        bytes_ptr, bf16_ptr, fp32_ptr: the arena, thrice; f lies there.
        ALIGN: a power of two that divides N0, N1 and N2.

    Grid: any number of programs. Source: Chen et al., "Punica", arXiv 2310.18547.
    """
    TILES: tl.constexpr = (
        (N0 + BLOCK_N - 1) // BLOCK_N + (N1 + BLOCK_N - 1) // BLOCK_N + (N2 + BLOCK_N - 1) // BLOCK_N
    )
    EVEN_N: tl.constexpr = (N0 % BLOCK_N == 0) and (N1 % BLOCK_N == 0) and (N2 % BLOCK_N == 0)
    program = tl.program_id(0)
    units = tl.load(counts_ptr) * TILES
    if STARTS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        if EVEN_N and ALIGN % 16 == 0:  # noqa: SIM102
            if program < units:  # dynamic, and so an `if` of its own
                slot = tl.load(items_ptr + program // TILES * 4)
                module, tile, columns, begin = find_columns(program % TILES, N0, N1, N2, BLOCK_N, ALIGN)
                offset, _factors, _start, rank, e4m3 = look_up_module(
                    offsets_ptr, ranks_ptr, place * num_slots + slot, module
                )
                size = 2 - e4m3
                if rank > 0:
                    fetch_block(
                        bytes_ptr, offset, columns * size, tile * BLOCK_N * size, rank * columns * size,
                        BLOCK_R, 2 * BLOCK_N,
                    )  # fmt: skip
        tl.extra.cuda.gdc_wait()
    for unit in tl.range(program, units, tl.num_programs(0)):
        item_ptr = items_ptr + unit // TILES * 4
        slot, first, rows = tl.load(item_ptr), tl.load(item_ptr + 1), tl.load(item_ptr + 2)
        dots = tl.load(item_ptr + 3)
        module, tile, columns, begin = find_columns(unit % TILES, N0, N1, N2, BLOCK_N, ALIGN)
        offset, factors, rank_start, rank, e4m3 = look_up_module(
            offsets_ptr, ranks_ptr, place * num_slots + slot, module
        )
        n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        module_ptr, factors_ptr = out_ptr + begin, fp32_ptr + factors // 4
        if rank > 0:
            if dots == 0:
                if e4m3 == 0:
                    _expand_few(
                        module_ptr, scale_ptr, partials_ptr, bytes_ptr, bf16_ptr, order_ptr, offset,
                        factors_ptr, first, rows, rank_start, rank, columns, n, out_stride,
                        CHUNKS, PADDED, RANK_STRIDE, BLOCK_R, EVEN_N, False,
                    )  # fmt: skip
                elif WITH_E4M3:
                    _expand_few(
                        module_ptr, scale_ptr, partials_ptr, bytes_ptr, bf16_ptr, order_ptr, offset,
                        factors_ptr, first, rows, rank_start, rank, columns, n, out_stride,
                        CHUNKS, PADDED, RANK_STRIDE, BLOCK_R, EVEN_N, True,
                    )  # fmt: skip
            elif e4m3 == 0:
                _expand_dot(
                    module_ptr, scale_ptr, partials_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, factors_ptr,
                    first, rows, rank_start, rank, columns, n, out_stride,
                    CHUNKS, RANK_STRIDE, BLOCK_R, BLOCK_N, ITEM_ROWS, EVEN_N, False, COMPUTE,
                )  # fmt: skip
            elif WITH_E4M3:
                _expand_dot(
                    module_ptr, scale_ptr, partials_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, factors_ptr,
                    first, rows, rank_start, rank, columns, n, out_stride,
                    CHUNKS, RANK_STRIDE, BLOCK_R, BLOCK_N, ITEM_ROWS, EVEN_N, True, COMPUTE,
                )  # fmt: skip
