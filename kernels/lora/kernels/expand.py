"""The expand of decoding rows: out += shrunk B, for all modules of a group in one launch.

Owns the kernel for items of up to 16 rows of a slot; units of work (item, tile of columns) are taken off the
list as in `shrink`. A module that an adapter lacks costs a look at its rank.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.lora.kernels.slots import fetch_ahead, find_columns, load_item, load_weights, look_up_module


@triton.jit
def _add_row(out_ptr, scale_ptr, row, n, delta, valid, OUT_STRIDE: tl.constexpr, EVEN_N: tl.constexpr):
    """out[row, n] += delta / scale[row]."""
    mask = None if EVEN_N else valid
    if scale_ptr is not None:
        delta = delta * (1.0 / tl.load(scale_ptr + row))
    at = out_ptr + row * OUT_STRIDE + n
    old = tl.load(at, mask=mask).to(tl.float32)
    tl.store(at, (old + delta).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _expand_few(
    out_ptr, scale_ptr, shrunk_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows, rank, columns, begin,
    OUT_STRIDE: tl.constexpr, RANK_STRIDE: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
    EVEN_N: tl.constexpr,
    IS_E4M3: tl.constexpr,
):  # fmt: skip
    """One or two rows on the vector units."""
    n = begin + tl.arange(0, BLOCK_N)
    valid = n < columns
    delta0 = tl.zeros([BLOCK_N], tl.float32)
    delta1 = tl.zeros([BLOCK_N], tl.float32)
    from_ptr = shrunk_ptr + first.to(tl.int64) * RANK_STRIDE
    for start in tl.range(0, rank, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        inside = r < rank
        mask = inside[:, None] if EVEN_N else inside[:, None] & valid[None, :]
        index = r[:, None] * columns + n[None, :]
        b = load_weights(bytes_ptr, bf16_ptr, offset, index, mask, IS_E4M3, tl.float32)
        # Both sums in any case: behind a branch, all of `b` would have to stay in fp32 registers.
        shrunk0 = tl.load(from_ptr + r, mask=inside, other=0.0)
        shrunk1 = tl.load(from_ptr + RANK_STRIDE + r, mask=inside & (rows > 1), other=0.0)
        delta0 += tl.sum(b * shrunk0[:, None], 0)
        delta1 += tl.sum(b * shrunk1[:, None], 0)
    row0 = tl.load(order_ptr + first).to(tl.int64)
    _add_row(out_ptr, scale_ptr, row0, n, delta0, valid, OUT_STRIDE, EVEN_N)
    if rows > 1:
        row1 = tl.load(order_ptr + first + 1).to(tl.int64)
        _add_row(out_ptr, scale_ptr, row1, n, delta1, valid, OUT_STRIDE, EVEN_N)


@triton.jit
def _expand_dot(
    out_ptr, scale_ptr, shrunk_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows, rank, columns, begin,
    OUT_STRIDE: tl.constexpr, RANK_STRIDE: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
    DOT_N: tl.constexpr,
    ITEM_ROWS: tl.constexpr, EVEN_N: tl.constexpr, IS_E4M3: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """Up to ITEM_ROWS rows on the tensor cores."""
    m = tl.arange(0, ITEM_ROWS)
    live = m < rows
    row = tl.load(order_ptr + first + m, mask=live, other=0).to(tl.int64)
    from_ptr = shrunk_ptr + (first + m).to(tl.int64)[:, None] * RANK_STRIDE
    for done in tl.range(0, BLOCK_N, DOT_N):
        n = begin + done + tl.arange(0, DOT_N)
        valid = n < columns
        delta = tl.zeros([ITEM_ROWS, DOT_N], tl.float32)
        for start in tl.range(0, rank, BLOCK_R):
            r = start + tl.arange(0, BLOCK_R)
            inside = r < rank
            mask = inside[:, None] if EVEN_N else inside[:, None] & valid[None, :]
            index = r[:, None] * columns + n[None, :]
            b = load_weights(bytes_ptr, bf16_ptr, offset, index, mask, IS_E4M3, COMPUTE)
            shrunk = tl.load(from_ptr + r[None, :], mask=live[:, None] & inside[None, :], other=0.0)
            delta = tl.dot(shrunk.to(COMPUTE), b, delta)
        if scale_ptr is not None:
            delta *= (1.0 / tl.load(scale_ptr + row, mask=live, other=1.0))[:, None]
        mask = live[:, None] if EVEN_N else live[:, None] & valid[None, :]
        out_at = out_ptr + row[:, None] * OUT_STRIDE + n[None, :]
        old = tl.load(out_at, mask=mask, other=0.0).to(tl.float32)
        tl.store(out_at, (old + delta).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _fetch_tile(bytes_ptr, offset, rank, e4m3, columns, begin, ROWS: tl.constexpr, BLOCK_N: tl.constexpr):
    """Ask for the first rows of a tile of B."""
    size = 2 - e4m3
    for row in tl.range(0, tl.minimum(rank, ROWS)):
        fetch_ahead(bytes_ptr + offset + (row * columns + begin) * size, BLOCK_N * size)


@triton.jit(do_not_specialize=["place", "num_slots"])
def expand_rows(
    out_ptr, scale_ptr, shrunk_ptr, bytes_ptr, bf16_ptr, offsets_ptr, ranks_ptr, counts_ptr, items_ptr,
    order_ptr, place, num_slots,
    OUT_STRIDE: tl.constexpr, N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, BLOCK_N: tl.constexpr,
    DOT_N: tl.constexpr,
    ALIGN: tl.constexpr, RANK_STRIDE: tl.constexpr, FEW_R: tl.constexpr, BLOCK_R: tl.constexpr,
    ITEM_ROWS: tl.constexpr, FETCHES: tl.constexpr, WITH_E4M3: tl.constexpr, COMPUTE: tl.constexpr,
    STARTS_EARLY: tl.constexpr,
):  # fmt: skip
    """Semantics: out[order[p], n] += sum over r of shrunk[p, r] * B[slot][r, n] / (scale[order[p]] or 1), r
        running over the ranks of n's module.

    Args:
        out_ptr: [T, N0 + N1 + N2], rows `OUT_STRIDE` apart; the modules' columns side by side.
        scale_ptr: fp32 [T] or None. shrunk_ptr: fp32 [places, RANK_STRIDE].
        bytes_ptr, bf16_ptr: the arena, twice. The rest as in `shrink_rows`.
        ALIGN: a power of two that divides N0, N1 and N2.
        FETCHES: whether weights are asked for ahead; every N must be a multiple of BLOCK_N.

    Grid: any number of programs. Source: Chen et al., "Punica", arXiv 2310.18547.
    """
    TILES: tl.constexpr = (
        (N0 + BLOCK_N - 1) // BLOCK_N + (N1 + BLOCK_N - 1) // BLOCK_N + (N2 + BLOCK_N - 1) // BLOCK_N
    )
    EVEN_N: tl.constexpr = (N0 % BLOCK_N == 0) and (N1 % BLOCK_N == 0) and (N2 % BLOCK_N == 0)
    program = tl.program_id(0)
    units = tl.load(counts_ptr) * TILES
    last = tl.maximum(units - 1, 0)
    unit = tl.minimum(program, last)
    slot, first, rows, dots = load_item(items_ptr + unit // TILES * 4)
    module, tile, columns, start = find_columns(unit % TILES, N0, N1, N2, BLOCK_N, ALIGN)
    offset, rank_start, rank, e4m3 = look_up_module(offsets_ptr, ranks_ptr, place * num_slots + slot, module)
    if STARTS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    if FETCHES and program < units:
        _fetch_tile(bytes_ptr, offset, rank, e4m3, columns, tile * BLOCK_N, 16, BLOCK_N)
    if STARTS_EARLY:
        tl.extra.cuda.gdc_wait()
    for unit in tl.range(program, units, tl.num_programs(0)):
        follower = tl.minimum(unit + tl.num_programs(0), last)
        next_slot, next_first, next_rows, next_dots = load_item(items_ptr + follower // TILES * 4)
        module, tile, columns, start = find_columns(follower % TILES, N0, N1, N2, BLOCK_N, ALIGN)
        next_offset, next_rank_start, next_rank, next_e4m3 = look_up_module(
            offsets_ptr, ranks_ptr, place * num_slots + next_slot, module
        )
        if FETCHES and follower > unit:
            _fetch_tile(bytes_ptr, next_offset, next_rank, next_e4m3, columns, tile * BLOCK_N, 16, BLOCK_N)
        module, tile, columns, start = find_columns(unit % TILES, N0, N1, N2, BLOCK_N, ALIGN)
        if rank > 0:
            module_ptr, from_ptr = out_ptr + start, shrunk_ptr + rank_start
            if dots == 0:
                if e4m3 == 0:
                    _expand_few(
                        module_ptr, scale_ptr, from_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows,
                        rank, columns, tile * BLOCK_N, OUT_STRIDE, RANK_STRIDE, FEW_R, BLOCK_N, EVEN_N,
                        False,
                    )  # fmt: skip
                elif WITH_E4M3:
                    _expand_few(
                        module_ptr, scale_ptr, from_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows,
                        rank, columns, tile * BLOCK_N, OUT_STRIDE, RANK_STRIDE, FEW_R, BLOCK_N, EVEN_N,
                        True,
                    )  # fmt: skip
            elif e4m3 == 0:
                _expand_dot(
                    module_ptr, scale_ptr, from_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows,
                    rank, columns, tile * BLOCK_N, OUT_STRIDE, RANK_STRIDE, BLOCK_R, BLOCK_N, DOT_N,
                    ITEM_ROWS, EVEN_N, False, COMPUTE,
                )  # fmt: skip
            elif WITH_E4M3:
                _expand_dot(
                    module_ptr, scale_ptr, from_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows,
                    rank, columns, tile * BLOCK_N, OUT_STRIDE, RANK_STRIDE, BLOCK_R, BLOCK_N, DOT_N,
                    ITEM_ROWS, EVEN_N, True, COMPUTE,
                )  # fmt: skip
        first, rows, dots = next_first, next_rows, next_dots
        offset, rank_start, rank, e4m3 = next_offset, next_rank_start, next_rank, next_e4m3
