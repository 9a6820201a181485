"""Samples in fused Triton kernels: the same ids as `reference.sample_reference`.

Suffixes: S positions of the step, V vocabulary, B blocks of it, R rows of the batch state.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.compilation import Compilation
from kernels.sampling.kernels.truncation import gather_kernel, sample_kernel, threshold_kernel
from kernels.sampling.kernels.weights import (
    allow,
    draws,
    joined,
    mask_of,
    split,
    truncates,
    uniform,
    weigh,
)
from kernels.sampling.step import GATHER_BLOCK

TILE = 2048
"""Tokens at a time of the passes over parts of a row: 16 for each of 128 threads."""
WIDTH = 2048
"""Of the passes over a whole row by one program of 1024 threads."""


@triton.jit
def uniform_kernel(seeds_ptr, positions_ptr, out_ptr, size, BLOCK: tl.constexpr):
    """Semantics: out[s] = uniform(seeds[s], positions[s]); int64 `[S]` twice, float64 `[S]`."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    seed = tl.load(seeds_ptr + at, inside, other=0)
    position = tl.load(positions_ptr + at, inside, other=0)
    tl.store(out_ptr + at, uniform(seed, position), inside)


@triton.jit
def _logits(line, vocab_size, start, bits, constrained, SIZE: tl.constexpr, MASKED: tl.constexpr):
    """Part of a row, -inf beyond its end and for tokens that its mask forbids."""
    at = start + tl.arange(0, SIZE)
    if start + SIZE <= vocab_size:  # no bounds: they cost two instructions per token
        x = tl.load(line + at).to(tl.float32)
    else:
        x = tl.load(line + at, at < vocab_size, other=-float("inf")).to(tl.float32)
    return allow(x, at, vocab_size, bits, constrained, MASKED)


@triton.jit
def _nan_is_largest(x):
    return tl.where(x != x, float("inf"), x)


@triton.jit
def largest_kernel(
    logits_ptr,
    stride,
    vocab_size,
    null_row,
    rows_ptr,
    masks_ptr,
    bits_ptr,
    words,
    places_ptr,
    best_ptr,
    tickets_ptr,
    largest_ptr,
    ids_ptr,
    next_ids_ptr,
    finite_ptr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Semantics: ids[places[s]] = next_ids[rows[s]] = argmax_v logits[s, v], the lowest v of equals.

    And finite[places[s]], largest[s]; a row with NaN, +inf or nothing but -inf is not finite and has id 0.
    Positions whose row is the null row are left alone. The program that finishes a row's last block reduces
    its blocks, so that one row uses many multiprocessors and nothing is launched twice; only the block with
    the largest is looked at again, for its place.

    Shapes: logits_SV (fp32 or bf16; a row's elements side by side), rows_S and places_S int32, best_SB fp32,
    tickets_S int32 (zeros, and again afterwards), largest_S fp32, ids int32, finite uint8.
    """
    block, position = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows_ptr + position)
    if row == null_row:
        return
    line = logits_ptr + position.to(tl.int64) * stride
    bits, constrained = mask_of(masks_ptr, bits_ptr, words, position, MASKED)
    num_blocks = tl.num_programs(0)
    partial = best_ptr + position * num_blocks
    x = _logits(line, vocab_size, block * BLOCK, bits, constrained, BLOCK, MASKED)
    tl.store(partial + block, tl.max(_nan_is_largest(x)))
    tl.debug_barrier()
    if tl.atomic_add(tickets_ptr + position, 1) == num_blocks - 1:
        blocks = tl.arange(0, BLOCKS)
        bests = tl.load(partial + blocks, blocks < num_blocks, other=-float("inf"), cache_modifier=".cg")
        largest = tl.max(bests)
        start = tl.min(tl.where(bests == largest, blocks, num_blocks - 1)) * BLOCK
        x = _nan_is_largest(_logits(line, vocab_size, start, bits, constrained, BLOCK, MASKED))
        at = start + tl.arange(0, BLOCK)
        finite = (largest < float("inf")) & (largest > -float("inf"))
        token = tl.where(finite, tl.min(tl.where(x == largest, at, vocab_size - 1)), 0)
        place = tl.load(places_ptr + position)
        tl.store(ids_ptr + place, token)
        tl.store(next_ids_ptr + row, token)
        tl.store(finite_ptr + place, finite.to(tl.uint8))
        tl.store(largest_ptr + position, tl.where(finite, largest, float("inf")))
        tl.store(tickets_ptr + position, 0)


@triton.jit
def _kept(
    line,
    end,
    begin,
    bits,
    constrained,
    largest,
    temperature,
    limit,
    min_p,
    TILE: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Split weights of a tile's tokens, 0 for those that the mask or truncation cuts."""
    x = _logits(line, end, begin, bits, constrained, TILE, MASKED)
    weight = weigh(x, largest, temperature)
    return split(tl.where((x >= limit) & (weight >= min_p), weight, 0.0))


@triton.jit
def draw_kernel(
    logits_ptr,
    stride,
    vocab_size,
    null_row,
    rows_ptr,
    masks_ptr,
    bits_ptr,
    words,
    places_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    seeds_ptr,
    positions_ptr,
    uniforms_ptr,
    largest_ptr,
    limit_ptr,
    masses_ptr,
    tickets_ptr,
    ids_ptr,
    next_ids_ptr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    TILE: tl.constexpr,
    HAS_UNIFORMS: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Semantics: ids[places[s]] = min { v : sum_{w <= v} e_w > u[s] * sum_w e_w }, over the tokens kept.

    Kept is what lies within the row's limit (top-k, top-p) and weighs min-p at least. The program that sums a
    row's last block finds the block that the draw falls into, and the token in it.

    Shapes: as in largest_kernel; temperature_S, top_p_S, min_p_S fp32, top_k_S int32, seeds_S, positions_S
    int64 or uniforms_S fp64, limit_S fp32, masses_SB int64, tickets_S int32 (zeros, and again afterwards).
    """
    block, position = tl.program_id(0), tl.program_id(1)
    row, temperature = tl.load(rows_ptr + position), tl.load(temperature_ptr + position)
    top_k, top_p = tl.load(top_k_ptr + position), tl.load(top_p_ptr + position)
    largest, min_p = tl.load(largest_ptr + position), tl.load(min_p_ptr + position)
    limit = tl.load(limit_ptr + position)
    if not draws(row, null_row, temperature, largest):
        return
    limit = tl.where(truncates(top_k, top_p, vocab_size), limit, -float("inf"))
    line = logits_ptr + position.to(tl.int64) * stride
    bits, constrained = mask_of(masks_ptr, bits_ptr, words, position, MASKED)
    start = block * BLOCK
    end = tl.minimum(start + BLOCK, vocab_size)
    high = tl.zeros((TILE,), tl.int32)
    low = tl.zeros((TILE,), tl.int32)
    for begin in range(start, end, TILE):
        more_high, more_low = _kept(
            line, end, begin, bits, constrained, largest, temperature, limit, min_p, TILE, MASKED
        )
        high += more_high
        low += more_low
    num_blocks = tl.num_programs(0)
    masses_ptr += position * num_blocks
    tl.store(masses_ptr + block, tl.sum(joined(high, low)))
    tl.debug_barrier()
    if tl.atomic_add(tickets_ptr + position, 1) == num_blocks - 1:
        if HAS_UNIFORMS:
            u = tl.load(uniforms_ptr + position)
        else:
            u = uniform(tl.load(seeds_ptr + position), tl.load(positions_ptr + position))
        blocks = tl.arange(0, BLOCKS)
        masses = tl.load(masses_ptr + blocks, blocks < num_blocks, other=0, cache_modifier=".cg")
        total = tl.sum(masses)
        target = tl.minimum((u * total.to(tl.float64)).to(tl.int64), total - 1)
        chosen = tl.min(tl.where(tl.cumsum(masses) > target, blocks, num_blocks - 1))
        target -= tl.sum(tl.where(blocks < chosen, masses, 0))
        start = chosen * BLOCK
        end = tl.minimum(start + BLOCK, vocab_size)
        token = end - 1
        for begin in range(start, end, TILE):
            more_high, more_low = _kept(
                line, end, begin, bits, constrained, largest, temperature, limit, min_p, TILE, MASKED
            )
            reached = tl.cumsum(joined(more_high, more_low))
            at = begin + tl.arange(0, TILE)
            token = tl.minimum(token, tl.min(tl.where(reached > target, at, end - 1)))
            target -= tl.max(reached)
        tl.store(ids_ptr + tl.load(places_ptr + position), token)
        tl.store(next_ids_ptr + row, token)
        tl.store(tickets_ptr + position, 0)


_POINTERS = {
    "rows_ptr": "*i32",
    "masks_ptr": "*i32",
    "bits_ptr": "*i32",
    "words": "i32",
    "places_ptr": "*i32",
    "temperature_ptr": "*fp32",
    "top_k_ptr": "*i32",
    "top_p_ptr": "*fp32",
    "min_p_ptr": "*fp32",
    "seeds_ptr": "*i64",
    "positions_ptr": "*i64",
    "uniforms_ptr": "*fp64",
    "best_ptr": "*fp32",
    "tickets_ptr": "*i32",
    "largest_ptr": "*fp32",
    "bottom_ptr": "*fp32",
    "counts_ptr": "*i32",
    "list_ptr": "*fp32",
    "limit_ptr": "*fp32",
    "masses_ptr": "*fp32",
    "ids_ptr": "*i32",
    "next_ids_ptr": "*i32",
    "finite_ptr": "*u8",
    "stride": "i64",
    "vocab_size": "i32",
    "null_row": "i32",
    "num_blocks": "i32",
}


def _compilation(kernel: triton.JITFunction, logits: str, num_warps: int, **constexprs: int) -> Compilation:
    types = {"logits_ptr": f"*{logits}", **_POINTERS}
    if kernel is draw_kernel:
        types["masses_ptr"] = "*i64"
    signature = {name: types[name] for name in kernel.arg_names if name in types}
    # Masks take a register or two too many on sm_80 and sm_100; on sm_90 nothing spills.
    spilled = 8 if constexprs["MASKED"] else 0
    return Compilation(kernel, signature, constexprs, num_warps, local_bytes=spilled)


COMPILATIONS = [
    Compilation(
        uniform_kernel,
        {"seeds_ptr": "*i64", "positions_ptr": "*i64", "out_ptr": "*fp64", "size": "i32"},
        {"BLOCK": 256},
    ),
    *(
        one
        for logits, shift in (("bf16", 16), ("fp32", 0))
        for masked in (False, True)
        for one in (
            _compilation(largest_kernel, logits, 8, BLOCK=1024, BLOCKS=128, MASKED=masked),
            _compilation(largest_kernel, logits, 8, BLOCK=8192, BLOCKS=16, MASKED=masked),
            _compilation(sample_kernel, logits, 8, SHIFT=shift, MASKED=masked),
            _compilation(gather_kernel, logits, 8, BLOCK=GATHER_BLOCK, LANES=256, MASKED=masked),
            _compilation(threshold_kernel, logits, 16, BLOCKS=64, SHIFT=shift, WIDTH=WIDTH, MASKED=masked),
            _compilation(
                draw_kernel, logits, 4, BLOCK=8192, BLOCKS=16, TILE=TILE, HAS_UNIFORMS=False, MASKED=masked
            ),
        )
    ),
]
