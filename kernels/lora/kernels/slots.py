"""Reads a slot's entries on the device for all LoRA kernels: where its weights are, and which columns are
whose.

Mirrors AdapterTable's and DeviceWork's layouts, and adds up what was summed in chunks.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.lora.kernels.handover import hand_over

_FETCH = tl.constexpr("""
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
def load_weights(bytes_ptr, bf16_ptr, offset, index, mask, IS_E4M3: tl.constexpr, OUT: tl.constexpr):
    """Semantics: arena[offset + index] as OUT; `offset` in bytes, 0 where masked."""
    if IS_E4M3:
        raw = tl.load(bytes_ptr + offset + index, mask=mask, other=0)
        return raw.to(tl.float8e4nv, bitcast=True).to(OUT)
    return tl.load(bf16_ptr + tl.multiple_of(offset // 2, 8) + index, mask=mask, other=0.0).to(OUT)


@triton.jit
def fetch_ahead(ptr, num_bytes):
    """Ask for a stretch of memory, a multiple of 16 bytes, to be in the L2 cache soon; nothing waits for it.

    One thread does: the instruction takes one address a warp. Source: PTX ISA, cp.async.bulk.prefetch.L2
    (sm_90 and later).
    """
    tl.inline_asm_elementwise(
        _FETCH, "=r,l,r", [ptr.to(tl.int64), num_bytes], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def end_after_those_before(program):
    """Keeps a launch that does not wait for the one before from ending first: who waits for this launch's end
    relies on both.
    """
    if program == 0:
        tl.extra.cuda.gdc_wait()


@triton.jit
def load_pair(pairs_ptr, pair):
    """slot, first place in `order`, rows, the rows themselves (twice the same if it is one)."""
    ptr = pairs_ptr + pair * 8
    return tl.load(ptr), tl.load(ptr + 1), tl.load(ptr + 2), tl.load(ptr + 3), tl.load(ptr + 4)


@triton.jit
def load_piece(pieces_ptr, piece):
    """Of a block or a tile: slot, first place in `order`, rows."""
    ptr = pieces_ptr + piece * 4
    return tl.load(ptr), tl.load(ptr + 1), tl.load(ptr + 2)


@triton.jit
def look_up(offsets_ptr, ranks_ptr, at):
    """Of one slot: offset of A, place of the factors, sum of ranks, whether weights are e4m3."""
    rank_ptr = ranks_ptr + at * 4
    rank = tl.load(rank_ptr) + tl.load(rank_ptr + 1) + tl.load(rank_ptr + 2)
    offset = tl.multiple_of(tl.load(offsets_ptr + at * 5), 16)
    return offset, tl.load(offsets_ptr + at * 5 + 4) // 4, rank, tl.load(rank_ptr + 3)


@triton.jit
def look_up_module(offsets_ptr, ranks_ptr, at, module):
    """Of one slot and module: offset of B, its first rank, its rank, whether weights are e4m3."""
    rank0, rank1 = tl.load(ranks_ptr + at * 4), tl.load(ranks_ptr + at * 4 + 1)
    rank = tl.load(ranks_ptr + at * 4 + module)
    e4m3 = tl.load(ranks_ptr + at * 4 + 3)
    rank_start = tl.where(module == 0, 0, tl.where(module == 1, rank0, rank0 + rank1))
    offset = tl.multiple_of(tl.load(offsets_ptr + at * 5 + 1 + module), 16)
    return offset, rank_start, rank, e4m3


@triton.jit
def find_columns(
    tile, N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, BLOCK: tl.constexpr, ALIGN: tl.constexpr
):
    """Of a column tile: its module, which tile of that it is, the module's columns and the first."""
    tiles0: tl.constexpr = (N0 + BLOCK - 1) // BLOCK
    tiles1: tl.constexpr = (N1 + BLOCK - 1) // BLOCK
    module = tl.where(tile >= tiles0, 1, 0) + tl.where(tile >= tiles0 + tiles1, 1, 0)
    tile -= tl.where(module == 0, 0, tl.where(module == 1, tiles0, tiles0 + tiles1))
    columns = tl.where(module == 0, N0, tl.where(module == 1, N1, N2))
    begin = tl.where(module == 0, 0, tl.where(module == 1, N0, N0 + N1))
    return module, tile, tl.multiple_of(columns, ALIGN), tl.multiple_of(begin, ALIGN)


@triton.jit
def add_up_chunks(
    partials_ptr, shrunk_ptr, factors_ptr, counter_ptr, first, rows, rank,
    CHUNKS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_M: tl.constexpr, RANK_STRIDE: tl.constexpr,
    number=0, SIZE: tl.constexpr = 0,
):  # fmt: skip
    """Semantics: shrunk[p, r] = f[r] * sum over c of partials[p, c, r], by the program that computed the last
    chunk.

    The order of the sum is fixed; only the program is not. Leaves the counter at 0 for the next launch.
    """
    # All threads have written before one of them says so; what it learns reaches them by another barrier.
    tl.debug_barrier()
    done = tl.atomic_add(counter_ptr, 1, sem="acq_rel")
    if done == CHUNKS - 1:
        tl.store(counter_ptr, 0)
        m = tl.arange(0, BLOCK_M)
        place = (first + m).to(tl.int64)[:, None]
        for start in tl.range(0, rank, BLOCK_R):
            r = start + tl.arange(0, BLOCK_R)
            mask = (m < rows)[:, None] & (r < rank)[None, :]
            at = partials_ptr + place * (CHUNKS * RANK_STRIDE) + r[None, :]
            total = tl.load(at, mask=mask, other=0.0, cache_modifier=".cg")
            for chunk in tl.static_range(1, CHUNKS):
                total += tl.load(at + chunk * RANK_STRIDE, mask=mask, other=0.0, cache_modifier=".cg")
            factor = tl.load(factors_ptr + r, mask=r < rank, other=0.0)
            to = place * RANK_STRIDE + r[None, :]
            hand_over(shrunk_ptr, number, to, total * factor[None, :], mask, SIZE)
