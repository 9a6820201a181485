"""The shrink of decoding rows: x A^T, split along K, over a list of work items.

Owns the kernel for items of up to 16 rows of a slot. A program takes units of work (item, chunk of K) off the
list in turn, so that a launch costs what is on the list and a captured grid serves any mix of adapters; while
it works on one, the weights of the next travel to the L2 cache. Items of one or two rows are summed by the
vector units, others by tensor cores; weights are bf16 or e4m3, item by item.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.lora.kernels.slots import add_up_parts, fetch_rows, load_item, load_weights, look_up


@triton.jit
def _shrink_few(
    x_ptr, partials_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows, rank, lane, chunk,
    K: tl.constexpr, X_STRIDE: tl.constexpr, CHUNK: tl.constexpr, LANES: tl.constexpr, BLOCK_R: tl.constexpr,
    ROW_STRIDE: tl.constexpr, IS_E4M3: tl.constexpr,
):  # fmt: skip
    """One or two rows on the vector units."""
    k = chunk * CHUNK + tl.arange(0, CHUNK)
    two = rows > 1
    row0 = tl.load(order_ptr + first).to(tl.int64)
    row1 = tl.load(order_ptr + first + rows - 1).to(tl.int64)
    x_mask = k < K if K % CHUNK != 0 else None
    x_zero = 0.0 if K % CHUNK != 0 else None
    x0 = tl.load(x_ptr + row0 * X_STRIDE + k, mask=x_mask, other=x_zero).to(tl.float32)
    x1 = tl.load(x_ptr + row1 * X_STRIDE + k, mask=two & (k < K), other=0.0).to(tl.float32)
    for start in tl.range(lane * BLOCK_R, rank, LANES * BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        inside = r < rank
        mask = inside[:, None] if K % CHUNK == 0 else inside[:, None] & (k < K)[None, :]
        a = load_weights(bytes_ptr, bf16_ptr, offset, r[:, None] * K + k[None, :], mask, IS_E4M3, tl.float32)
        # Both sums in any case: behind a branch, all of `a` would have to stay in fp32 registers.
        out_ptr = partials_ptr + first.to(tl.int64) * ROW_STRIDE + r
        tl.store(out_ptr, tl.sum(a * x0[None, :], 1), mask=inside)
        tl.store(out_ptr + ROW_STRIDE, tl.sum(a * x1[None, :], 1), mask=inside & two)


@triton.jit
def _shrink_dot(
    x_ptr, partials_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows, rank, lane, chunk,
    K: tl.constexpr, X_STRIDE: tl.constexpr, CHUNK: tl.constexpr, LANES: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
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
            x = tl.load(x_ptr + row[:, None] * X_STRIDE + k[None, :], mask=x_mask, other=0.0).to(COMPUTE)
            a = load_weights(
                bytes_ptr, bf16_ptr, offset, r[None, :] * K + k[:, None], a_mask, IS_E4M3, COMPUTE
            )
            shrunk = tl.dot(x, a, shrunk)
        place = (first + m).to(tl.int64) * ROW_STRIDE
        tl.store(partials_ptr + place[:, None] + r[None, :], shrunk, mask=valid[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["place", "num_slots"])
def shrink_rows(
    x_ptr, shrunk_ptr, partials_ptr, counters_ptr, bytes_ptr, bf16_ptr, fp32_ptr, offsets_ptr, ranks_ptr,
    counts_ptr, items_ptr, order_ptr, place, num_slots,
    K: tl.constexpr, X_STRIDE: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, LANES: tl.constexpr,
    RANK_STRIDE: tl.constexpr, BLOCK_R: tl.constexpr, DOT_R: tl.constexpr, DOT_K: tl.constexpr,
    ITEM_ROWS: tl.constexpr, FETCHES: tl.constexpr, WITH_E4M3: tl.constexpr, COMPUTE: tl.constexpr,
    STARTS_EARLY: tl.constexpr,
):  # fmt: skip
    """Semantics: shrunk[p, r] = f[slot][r] * sum over k of x[order[p], k] * A[slot][r, k].

    Args:
        x_ptr: [T, K], rows `X_STRIDE` apart. shrunk_ptr: fp32 [places, RANK_STRIDE].
        partials_ptr: fp32 [places, CHUNKS, RANK_STRIDE]. counters_ptr: int32 [items * LANES], zeros.
        bytes_ptr, bf16_ptr, fp32_ptr: the arena, thrice.
        offsets_ptr, ranks_ptr: AdapterTable; `place` is layer * G + group.
        counts_ptr, items_ptr, order_ptr: DeviceWork.
        FETCHES: whether weights are asked for ahead; K must be a multiple of 16 and no less than CHUNK.
        LANES: programs that share an item's ranks. BLOCK_R, DOT_R: ranks at a time, by the two paths.

    Grid: any number of programs. Source: Chen et al., "Punica", arXiv 2310.18547.
    """
    PARTS: tl.constexpr = CHUNKS * LANES
    program = tl.program_id(0)
    units = tl.load(counts_ptr) * PARTS
    last = tl.maximum(units - 1, 0)
    slot, first, rows, dots = load_item(items_ptr + tl.minimum(program, last) // PARTS * 4)
    offset, factors, rank, e4m3 = look_up(offsets_ptr, ranks_ptr, place * num_slots + slot)
    if STARTS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    if FETCHES and program < units:
        size, start = 2 - e4m3, program // LANES % CHUNKS * CHUNK
        fetch_rows(
            bytes_ptr, offset, K * size, start * size, rank, LANES, BLOCK_R, program % LANES, 2 * CHUNK
        )
    if STARTS_EARLY:
        tl.extra.cuda.gdc_wait()
    for unit in tl.range(program, units, tl.num_programs(0)):
        follower = unit + tl.num_programs(0)
        next_slot, next_first, next_rows, next_dots = load_item(
            items_ptr + tl.minimum(follower, last) // PARTS * 4
        )
        next_offset, next_factors, next_rank, next_e4m3 = look_up(
            offsets_ptr, ranks_ptr, place * num_slots + next_slot
        )
        if FETCHES and follower < units:
            size, start = 2 - next_e4m3, follower // LANES % CHUNKS * CHUNK
            fetch_rows(
                bytes_ptr, next_offset, K * size, start * size, next_rank, LANES, BLOCK_R, follower % LANES,
                2 * CHUNK,
            )  # fmt: skip
        lane, chunk = unit % LANES, unit // LANES % CHUNKS
        sums_ptr = partials_ptr + chunk * RANK_STRIDE
        if dots == 0:
            if e4m3 == 0:
                _shrink_few(
                    x_ptr, sums_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows, rank, lane, chunk,
                    K, X_STRIDE, CHUNK, LANES, BLOCK_R, CHUNKS * RANK_STRIDE, False,
                )  # fmt: skip
            elif WITH_E4M3:
                _shrink_few(
                    x_ptr, sums_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows, rank, lane, chunk,
                    K, X_STRIDE, CHUNK, LANES, BLOCK_R, CHUNKS * RANK_STRIDE, True,
                )  # fmt: skip
        elif e4m3 == 0:
            _shrink_dot(
                x_ptr, sums_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows, rank, lane, chunk,
                K, X_STRIDE, CHUNK, LANES, DOT_R, DOT_K, ITEM_ROWS, CHUNKS * RANK_STRIDE, False, COMPUTE,
            )  # fmt: skip
        elif WITH_E4M3:
            _shrink_dot(
                x_ptr, sums_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows, rank, lane, chunk,
                K, X_STRIDE, CHUNK, LANES, DOT_R, DOT_K, ITEM_ROWS, CHUNKS * RANK_STRIDE, True, COMPUTE,
            )  # fmt: skip
        counter_ptr = counters_ptr + unit // PARTS * LANES + lane
        if dots == 0:
            add_up_parts(
                partials_ptr, shrunk_ptr, fp32_ptr + factors, counter_ptr, first, rows, rank, lane,
                CHUNKS, LANES, BLOCK_R, 2, RANK_STRIDE,
            )  # fmt: skip
        else:
            add_up_parts(
                partials_ptr, shrunk_ptr, fp32_ptr + factors, counter_ptr, first, rows, rank, lane,
                CHUNKS, LANES, DOT_R, ITEM_ROWS, RANK_STRIDE,
            )  # fmt: skip
        first, rows, dots = next_first, next_rows, next_dots
        offset, factors, rank, e4m3 = next_offset, next_factors, next_rank, next_e4m3
