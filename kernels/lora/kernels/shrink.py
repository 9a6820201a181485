"""The shrink of decoding rows: x A^T, split along K, over a list of work items.

Owns the kernel for items of up to 16 rows of a slot. A program takes units of work (item, chunk of K) off the
list in turn, so that a launch costs what is on the list and a captured grid serves any mix of adapters. Items
of one or two rows are summed by the vector units, others by tensor cores; weights are bf16 or e4m3, item by
item.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.lora.kernels.slots import fetch_block, load_weights, look_up


@triton.jit
def _shrink_few(
    x_ptr, partials_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows, rank, lane, chunk, x_stride,
    K: tl.constexpr, CHUNK: tl.constexpr, LANES: tl.constexpr, BLOCK_R: tl.constexpr,
    ROW_STRIDE: tl.constexpr, IS_E4M3: tl.constexpr,
):  # fmt: skip
    """One or two rows on the vector units."""
    row0 = tl.load(order_ptr + first).to(tl.int64)
    row1 = tl.load(order_ptr + first + rows - 1).to(tl.int64)
    k = chunk * CHUNK + tl.arange(0, CHUNK)
    two = rows > 1
    if K % CHUNK == 0:
        x0 = tl.load(x_ptr + row0 * x_stride + k).to(tl.float32)
        x1 = tl.load(x_ptr + row1 * x_stride + k, mask=two, other=0.0).to(tl.float32)
    else:
        x0 = tl.load(x_ptr + row0 * x_stride + k, mask=k < K, other=0.0).to(tl.float32)
        x1 = tl.load(x_ptr + row1 * x_stride + k, mask=(k < K) & two, other=0.0).to(tl.float32)
    for start in tl.range(lane * BLOCK_R, rank, LANES * BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        inside = r < rank
        mask = inside[:, None] if K % CHUNK == 0 else inside[:, None] & (k < K)[None, :]
        a = load_weights(bytes_ptr, bf16_ptr, offset, r[:, None] * K + k[None, :], mask, IS_E4M3, tl.float32)
        out_ptr = partials_ptr + first.to(tl.int64) * ROW_STRIDE + r
        tl.store(out_ptr, tl.sum(a * x0[None, :], 1), mask=inside)
        tl.store(out_ptr + ROW_STRIDE, tl.sum(a * x1[None, :], 1), mask=inside & two)


@triton.jit
def _shrink_dot(
    x_ptr, partials_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows, rank, lane, chunk, x_stride,
    K: tl.constexpr, CHUNK: tl.constexpr, LANES: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
    ITEM_ROWS: tl.constexpr, ROW_STRIDE: tl.constexpr, IS_E4M3: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """Up to ITEM_ROWS rows on the tensor cores."""
    m = tl.arange(0, ITEM_ROWS)
    valid = m < rows
    row = tl.load(order_ptr + first + m, mask=valid, other=0).to(tl.int64)
    for start in tl.range(lane * BLOCK_R, rank, LANES * BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        inside = r < rank
        shrunk = tl.zeros([ITEM_ROWS, BLOCK_R], tl.float32)
        for done in tl.range(0, CHUNK, BLOCK_K):
            k = chunk * CHUNK + done + tl.arange(0, BLOCK_K)
            x_mask, a_mask = valid[:, None], inside[None, :]
            if K % CHUNK != 0:
                x_mask, a_mask = x_mask & (k < K)[None, :], a_mask & (k < K)[:, None]
            x = tl.load(x_ptr + row[:, None] * x_stride + k[None, :], mask=x_mask, other=0.0).to(COMPUTE)
            a = load_weights(
                bytes_ptr, bf16_ptr, offset, r[None, :] * K + k[:, None], a_mask, IS_E4M3, COMPUTE
            )
            shrunk = tl.dot(x, a, shrunk)
        place = (first + m).to(tl.int64) * ROW_STRIDE
        tl.store(partials_ptr + place[:, None] + r[None, :], shrunk, mask=valid[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["place", "num_slots"])
def shrink_rows(
    x_ptr, partials_ptr, bytes_ptr, bf16_ptr, offsets_ptr, ranks_ptr, counts_ptr, items_ptr, order_ptr,
    place, num_slots, x_stride,
    K: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, LANES: tl.constexpr,
    RANK_STRIDE: tl.constexpr, BLOCK_R: tl.constexpr, DOT_R: tl.constexpr, DOT_K: tl.constexpr,
    ITEM_ROWS: tl.constexpr,
    WITH_E4M3: tl.constexpr, COMPUTE: tl.constexpr, STARTS_EARLY: tl.constexpr,
):  # fmt: skip
    """Semantics: partials[p, c, r] = sum over k in chunk c of x[order[p], k] * A[slot][r, k].

    Args:
        x_ptr: [T, K], rows `x_stride` apart. partials_ptr: fp32 [places, CHUNKS, RANK_STRIDE].
        bytes_ptr, bf16_ptr: the arena, twice.
        offsets_ptr, ranks_ptr: AdapterTable; `place` is layer * G + group.
        counts_ptr, items_ptr, order_ptr: DeviceWork.
        LANES: programs that share an item's ranks. BLOCK_R, DOT_R: ranks at a time, by the two paths.

    Grid: any number of programs. Source: Chen et al., "Punica", arXiv 2310.18547.
    """
    program = tl.program_id(0)
    units = tl.load(counts_ptr) * (CHUNKS * LANES)
    if STARTS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        if (K % 16 == 0) & (K >= CHUNK):  # noqa: SIM102
            if program < units:  # dynamic, and so an `if` of its own
                slot = tl.load(items_ptr + program // (CHUNKS * LANES) * 4)
                offset, rank, e4m3 = look_up(offsets_ptr, ranks_ptr, place * num_slots + slot)
                begin = program % LANES * (BLOCK_R * K) + program // LANES % CHUNKS * CHUNK
                size = 2 - e4m3
                if rank > 0:
                    fetch_block(
                        bytes_ptr, offset, K * size, begin * size, rank * K * size, BLOCK_R, 2 * CHUNK
                    )
        tl.extra.cuda.gdc_wait()
    for unit in tl.range(program, units, tl.num_programs(0)):
        item_ptr = items_ptr + unit // (CHUNKS * LANES) * 4
        lane, chunk = unit % LANES, unit // LANES % CHUNKS
        slot, first, rows = tl.load(item_ptr), tl.load(item_ptr + 1), tl.load(item_ptr + 2)
        dots = tl.load(item_ptr + 3)
        offset, rank, e4m3 = look_up(offsets_ptr, ranks_ptr, place * num_slots + slot)
        sums_ptr = partials_ptr + chunk * RANK_STRIDE
        if dots == 0:
            if e4m3 == 0:
                _shrink_few(
                    x_ptr, sums_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows, rank, lane, chunk,
                    x_stride, K, CHUNK, LANES, BLOCK_R, CHUNKS * RANK_STRIDE, False,
                )  # fmt: skip
            elif WITH_E4M3:
                _shrink_few(
                    x_ptr, sums_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows, rank, lane, chunk,
                    x_stride, K, CHUNK, LANES, BLOCK_R, CHUNKS * RANK_STRIDE, True,
                )  # fmt: skip
        elif e4m3 == 0:
            _shrink_dot(
                x_ptr, sums_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows, rank, lane, chunk,
                x_stride, K, CHUNK, LANES, DOT_R, DOT_K, ITEM_ROWS, CHUNKS * RANK_STRIDE, False, COMPUTE,
            )  # fmt: skip
        elif WITH_E4M3:
            _shrink_dot(
                x_ptr, sums_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows, rank, lane, chunk,
                x_stride, K, CHUNK, LANES, DOT_R, DOT_K, ITEM_ROWS, CHUNKS * RANK_STRIDE, True, COMPUTE,
            )  # fmt: skip
