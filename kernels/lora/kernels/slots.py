"""What all LoRA kernels ask of a slot: where its weights are, which columns are whose, the weights.

Owns the device side of AdapterTable's layout. Refuses to know rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.overlap import fetch_into_l2


@triton.jit
def load_weights(bytes_ptr, bf16_ptr, offset, index, mask, IS_E4M3: tl.constexpr, OUT: tl.constexpr):
    """Semantics: arena[offset + index] as OUT; `offset` in bytes, 0 where masked."""
    if IS_E4M3:
        raw = tl.load(bytes_ptr + offset + index, mask=mask, other=0)
        return raw.to(tl.float8e4nv, bitcast=True).to(OUT)
    return tl.load(bf16_ptr + tl.multiple_of(offset // 2, 8) + index, mask=mask, other=0.0).to(OUT)


@triton.jit
def fetch_block(bytes_ptr, offset, row_bytes, column_bytes, last, ROWS: tl.constexpr, BYTES: tl.constexpr):
    """Ask for ROWS x BYTES of a matrix, 128 bytes a thread; whatever lies beyond `last` is not asked for."""
    part = tl.arange(0, ROWS * BYTES // 128)
    place = (part // (BYTES // 128)) * row_bytes + column_bytes + (part % (BYTES // 128)) * 128
    address = (bytes_ptr + offset + tl.minimum(place, last - 128)).to(tl.int64)
    fetch_into_l2(address, 128)


@triton.jit
def look_up(offsets_ptr, ranks_ptr, at):
    """Of one slot: offset of A, sum of ranks, whether weights are e4m3."""
    rank_ptr = ranks_ptr + at * 4
    rank = tl.load(rank_ptr) + tl.load(rank_ptr + 1) + tl.load(rank_ptr + 2)
    return tl.multiple_of(tl.load(offsets_ptr + at * 5), 16), rank, tl.load(rank_ptr + 3)


@triton.jit
def look_up_module(offsets_ptr, ranks_ptr, at, module):
    """Of one slot and module: offset of B, offset of the rank factors, first rank, rank, whether e4m3."""
    rank0, rank1 = tl.load(ranks_ptr + at * 4), tl.load(ranks_ptr + at * 4 + 1)
    rank = tl.load(ranks_ptr + at * 4 + module)
    e4m3 = tl.load(ranks_ptr + at * 4 + 3)
    rank_start = tl.where(module == 0, 0, tl.where(module == 1, rank0, rank0 + rank1))
    offset = tl.multiple_of(tl.load(offsets_ptr + at * 5 + 1 + module), 16)
    return offset, tl.load(offsets_ptr + at * 5 + 4), rank_start, rank, e4m3


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
