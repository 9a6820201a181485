"""The shrink of decoding rows: x A^T over a list of work items.

Owns the kernel for items of up to 16 rows of a slot. A program takes units of work (item, part) off the list in
turn, so that a launch costs what is on the list and a captured grid serves any mix of adapters. Of an item of
one or two rows a part is some rows of A, whole: the vector units sum them up, and nothing is left to add. Of
others it is a chunk of K, for the tensor cores: with all of A's rows at once x is read once. Weights are bf16
or e4m3, item by item.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.lora.kernels.slots import add_up_chunks, fetch_ahead, load_item, load_weights, look_up


@triton.jit
def _shrink_few(
    x_ptr, shrunk_ptr, bytes_ptr, bf16_ptr, factors_ptr, order_ptr, offset, first, rows, rank, part,
    K: tl.constexpr, X_STRIDE: tl.constexpr, STEP: tl.constexpr, PARTS: tl.constexpr, BLOCK_R: tl.constexpr,
    RANK_STRIDE: tl.constexpr, IS_E4M3: tl.constexpr,
):  # fmt: skip
    """One or two rows on the vector units. Both sums in any case: a branch would cost more registers."""
    two = rows > 1
    x0_ptr = x_ptr + tl.load(order_ptr + first).to(tl.int64) * X_STRIDE
    x1_ptr = x_ptr + tl.load(order_ptr + first + rows - 1).to(tl.int64) * X_STRIDE
    for start in tl.range(part * BLOCK_R, rank, PARTS * BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        inside = r < rank
        sum0 = tl.zeros([BLOCK_R, STEP], tl.float32)
        sum1 = tl.zeros([BLOCK_R, STEP], tl.float32)
        for done in tl.range(0, K, STEP):
            k = done + tl.arange(0, STEP)
            mask = inside[:, None] if K % STEP == 0 else inside[:, None] & (k < K)[None, :]
            index = r[:, None] * K + k[None, :]
            a = load_weights(bytes_ptr, bf16_ptr, offset, index, mask, IS_E4M3, tl.float32)
            x0 = tl.load(x0_ptr + k, mask=k < K, other=0.0).to(tl.float32)
            x1 = tl.load(x1_ptr + k, mask=two & (k < K), other=0.0).to(tl.float32)
            sum0 += a * x0[None, :]
            sum1 += a * x1[None, :]
        factor = tl.load(factors_ptr + r, mask=inside, other=0.0)
        out_ptr = shrunk_ptr + first.to(tl.int64) * RANK_STRIDE + r
        tl.store(out_ptr, tl.sum(sum0, 1) * factor, mask=inside)
        tl.store(out_ptr + RANK_STRIDE, tl.sum(sum1, 1) * factor, mask=inside & two)


@triton.jit
def _shrink_dot(
    x_ptr, partials_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows, rank, chunk,
    K: tl.constexpr, X_STRIDE: tl.constexpr, CHUNK: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr, ITEM_ROWS: tl.constexpr, ROW_STRIDE: tl.constexpr, IS_E4M3: tl.constexpr,
    COMPUTE: tl.constexpr,
):  # fmt: skip
    """Up to ITEM_ROWS rows on the tensor cores."""
    m = tl.arange(0, ITEM_ROWS)
    valid = m < rows
    row = tl.load(order_ptr + first + m, mask=valid, other=0).to(tl.int64)
    for start in tl.range(0, rank, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        inside = r < rank
        shrunk = tl.zeros([ITEM_ROWS, BLOCK_R], tl.float32)
        for done in tl.range(0, CHUNK, BLOCK_K):
            k = chunk * CHUNK + done + tl.arange(0, BLOCK_K)
            x_mask, a_mask = valid[:, None], inside[None, :]
            if K % BLOCK_K != 0 or K % CHUNK != 0:
                x_mask, a_mask = x_mask & (k < K)[None, :], a_mask & (k < K)[:, None]
            x = tl.load(x_ptr + row[:, None] * X_STRIDE + k[None, :], mask=x_mask, other=0.0).to(COMPUTE)
            index = r[None, :] * K + k[:, None]
            a = load_weights(bytes_ptr, bf16_ptr, offset, index, a_mask, IS_E4M3, COMPUTE)
            shrunk = tl.dot(x, a, shrunk)
        place = (first + m).to(tl.int64) * ROW_STRIDE
        tl.store(partials_ptr + place[:, None] + r[None, :], shrunk, mask=valid[:, None] & inside[None, :])


@triton.jit
def _fetch_part(bytes_ptr, offset, rank, e4m3, part, K: tl.constexpr, BLOCK_R: tl.constexpr):
    """Ask for the first rows of A that `_shrink_few` reads of a part."""
    row = part * BLOCK_R
    if row < rank:
        row_bytes = K * (2 - e4m3)
        fetch_ahead(bytes_ptr + offset + row * row_bytes, tl.minimum(rank - row, BLOCK_R) * row_bytes)


@triton.jit(do_not_specialize=["place", "num_slots"])
def shrink_rows(
    x_ptr, shrunk_ptr, partials_ptr, counters_ptr, bytes_ptr, bf16_ptr, fp32_ptr, offsets_ptr, ranks_ptr,
    counts_ptr, items_ptr, order_ptr, place, num_slots,
    K: tl.constexpr, X_STRIDE: tl.constexpr, RANK_STRIDE: tl.constexpr, PARTS: tl.constexpr,
    FEW_R: tl.constexpr, STEP: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, DOT_R: tl.constexpr,
    DOT_K: tl.constexpr, ITEM_ROWS: tl.constexpr, FETCHES: tl.constexpr, WITH_E4M3: tl.constexpr,
    COMPUTE: tl.constexpr, STARTS_EARLY: tl.constexpr,
):  # fmt: skip
    """Semantics: shrunk[p, r] = f[slot][r] * sum over k of x[order[p], k] * A[slot][r, k].

    Args:
        x_ptr: [T, K], rows X_STRIDE apart. shrunk_ptr: fp32 [places, RANK_STRIDE].
        partials_ptr: fp32 [places, CHUNKS, RANK_STRIDE]. counters_ptr: int32 [items], zeros.
        bytes_ptr, bf16_ptr, fp32_ptr: the arena, thrice.
        offsets_ptr, ranks_ptr: AdapterTable; `place` is layer * G + group.
        counts_ptr, items_ptr, order_ptr: DeviceWork.
        PARTS: units of an item, CHUNKS at least. FEW_R, DOT_R: rows of A at a time, by the two paths.
        FETCHES: whether a unit's weights are asked for ahead; K must be a multiple of 16.

    Grid: any number of programs. Source: Chen et al., "Punica", arXiv 2310.18547.
    """
    program = tl.program_id(0)
    units = tl.load(counts_ptr) * PARTS
    last = tl.maximum(units - 1, 0)
    slot, first, rows, dots = load_item(items_ptr + tl.minimum(program, last) // PARTS * 4)
    offset, factors, rank, e4m3 = look_up(offsets_ptr, ranks_ptr, place * num_slots + slot)
    if STARTS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    if FETCHES and (program < units) & (dots == 0):
        _fetch_part(bytes_ptr, offset, rank, e4m3, program % PARTS, K, FEW_R)
    if STARTS_EARLY:
        tl.extra.cuda.gdc_wait()
    for unit in tl.range(program, units, tl.num_programs(0)):
        follower = tl.minimum(unit + tl.num_programs(0), last)
        next_slot, next_first, next_rows, next_dots = load_item(items_ptr + follower // PARTS * 4)
        next_offset, next_factors, next_rank, next_e4m3 = look_up(
            offsets_ptr, ranks_ptr, place * num_slots + next_slot
        )
        if FETCHES and (follower > unit) & (next_dots == 0):
            _fetch_part(bytes_ptr, next_offset, next_rank, next_e4m3, follower % PARTS, K, FEW_R)
        part = unit % PARTS
        factors_ptr = fp32_ptr + factors
        if dots == 0:
            if e4m3 == 0:
                _shrink_few(
                    x_ptr, shrunk_ptr, bytes_ptr, bf16_ptr, factors_ptr, order_ptr, offset, first, rows, rank,
                    part, K, X_STRIDE, STEP, PARTS, FEW_R, RANK_STRIDE, False,
                )  # fmt: skip
            elif WITH_E4M3:
                _shrink_few(
                    x_ptr, shrunk_ptr, bytes_ptr, bf16_ptr, factors_ptr, order_ptr, offset, first, rows, rank,
                    part, K, X_STRIDE, STEP, PARTS, FEW_R, RANK_STRIDE, True,
                )  # fmt: skip
        elif part < CHUNKS:
            sums_ptr = partials_ptr + part * RANK_STRIDE
            if e4m3 == 0:
                _shrink_dot(
                    x_ptr, sums_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows, rank, part,
                    K, X_STRIDE, CHUNK, DOT_R, DOT_K, ITEM_ROWS, CHUNKS * RANK_STRIDE, False, COMPUTE,
                )  # fmt: skip
            elif WITH_E4M3:
                _shrink_dot(
                    x_ptr, sums_ptr, bytes_ptr, bf16_ptr, order_ptr, offset, first, rows, rank, part,
                    K, X_STRIDE, CHUNK, DOT_R, DOT_K, ITEM_ROWS, CHUNKS * RANK_STRIDE, True, COMPUTE,
                )  # fmt: skip
            add_up_chunks(
                partials_ptr, shrunk_ptr, factors_ptr, counters_ptr + unit // PARTS, first, rows, rank,
                CHUNKS, 16, ITEM_ROWS, RANK_STRIDE,
            )  # fmt: skip
        first, rows, dots = next_first, next_rows, next_dots
        offset, factors, rank, e4m3 = next_offset, next_factors, next_rank, next_e4m3
