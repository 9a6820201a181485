"""Fused sampling in Triton: the same ids as `reference.sample_reference`.

Suffixes: S positions of the step, V vocabulary, B blocks of it, R rows of the batch state.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.compilation import Compilation
from kernels.sampling.kernels.truncation import gather_kernel, survey_kernel, threshold_kernel
from kernels.sampling.kernels.weights import DEEPEST, draws, integer, truncates, uniform, weigh


@triton.jit
def uniform_kernel(seeds_ptr, positions_ptr, out_ptr, size, BLOCK: tl.constexpr):
    """Semantics: out[s] = uniform(seeds[s], positions[s]); int64 `[S]` twice, float64 `[S]`."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    seed = tl.load(seeds_ptr + at, inside, other=0)
    position = tl.load(positions_ptr + at, inside, other=0)
    tl.store(out_ptr + at, uniform(seed, position), inside)


@triton.jit
def largest_kernel(
    logits_ptr,
    stride,
    vocab_size,
    null_row,
    rows_ptr,
    places_ptr,
    best_ptr,
    where_ptr,
    tickets_ptr,
    largest_ptr,
    ids_ptr,
    next_ids_ptr,
    finite_ptr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Semantics: ids[places[s]] = next_ids[rows[s]] = argmax_v logits[s, v], the lowest v of equals.

    And finite[places[s]], largest[s]; a row with NaN, +inf or nothing but -inf is not finite and has id 0.
    Positions whose row is the null row are left alone. The program that finishes a row's last block reduces
    its blocks, so that one row uses many multiprocessors and nothing is launched twice.

    Shapes: logits_SV (fp32 or bf16; a row's elements side by side), rows_S and places_S int32, best_SB fp32,
    where_SB int32, tickets_S int32 (zeros, and again afterwards), largest_S fp32, ids int32, finite uint8.
    """
    block, position = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows_ptr + position)
    if row == null_row:
        return
    at = block * BLOCK + tl.arange(0, BLOCK)
    line = logits_ptr + position.to(tl.int64) * stride
    x = tl.load(line + at, at < vocab_size, other=-float("inf")).to(tl.float32)
    x = tl.where(x != x, float("inf"), x)  # a NaN is the largest of all
    best = tl.max(x)
    num_blocks = tl.num_programs(0)
    partial = position * num_blocks
    tl.store(best_ptr + partial + block, best)
    tl.store(where_ptr + partial + block, tl.min(tl.where(x == best, at, vocab_size - 1)))
    tl.debug_barrier()
    if tl.atomic_add(tickets_ptr + position, 1) == num_blocks - 1:
        blocks = tl.arange(0, BLOCKS)
        inside = blocks < num_blocks
        bests = tl.load(best_ptr + partial + blocks, inside, other=-float("inf"), cache_modifier=".cg")
        places = tl.load(where_ptr + partial + blocks, inside, other=vocab_size, cache_modifier=".cg")
        largest = tl.max(bests)
        finite = (largest < float("inf")) & (largest > -float("inf"))
        token = tl.where(finite, tl.min(tl.where(bests == largest, places, vocab_size)), 0)
        place = tl.load(places_ptr + position)
        tl.store(ids_ptr + place, token)
        tl.store(next_ids_ptr + row, token)
        tl.store(finite_ptr + place, finite.to(tl.uint8))
        tl.store(largest_ptr + position, tl.where(finite, largest, float("inf")))
        tl.store(tickets_ptr + position, 0)


@triton.jit
def draw_kernel(
    logits_ptr,
    stride,
    vocab_size,
    null_row,
    rows_ptr,
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
    HAS_UNIFORMS: tl.constexpr,
):
    """Semantics: ids[places[s]] = min { v : sum_{w <= v} e_w > u[s] * sum_w e_w }, over the tokens kept.

    Kept is what lies within the row's limit (top-k, top-p) and weighs min-p at least. The program that sums a
    row's last block finds the block that the draw falls into, and the token in it.

    Shapes: as in largest_kernel; temperature_S, top_p_S, min_p_S fp32, top_k_S int32, seeds_S, positions_S
    int64 or uniforms_S fp64, limit_S int32, masses_SB int64, tickets_S int32 (zeros, and again afterwards).
    """
    block, position = tl.program_id(0), tl.program_id(1)
    if not draws(position, null_row, rows_ptr, temperature_ptr, largest_ptr):
        return
    is_cut = truncates(tl.load(top_k_ptr + position), tl.load(top_p_ptr + position), vocab_size)
    limit = tl.load(limit_ptr + position, is_cut, other=DEEPEST)
    min_p = tl.load(min_p_ptr + position)
    largest, temperature = tl.load(largest_ptr + position), tl.load(temperature_ptr + position)
    line = logits_ptr + position.to(tl.int64) * stride
    at = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(line + at, at < vocab_size, other=-float("inf")).to(tl.float32)
    depth, weight = weigh(x, largest, temperature)
    weight = tl.where((at < vocab_size) & (depth <= limit) & (weight >= min_p), weight, 0.0)
    num_blocks = tl.num_programs(0)
    tl.store(masses_ptr + position * num_blocks + block, tl.sum(integer(weight)))
    tl.debug_barrier()
    if tl.atomic_add(tickets_ptr + position, 1) == num_blocks - 1:
        if HAS_UNIFORMS:
            u = tl.load(uniforms_ptr + position)
        else:
            u = uniform(tl.load(seeds_ptr + position), tl.load(positions_ptr + position))
        blocks = tl.arange(0, BLOCKS)
        masses = tl.load(
            masses_ptr + position * num_blocks + blocks,
            blocks < num_blocks,
            other=0,
            cache_modifier=".cg",
        )
        total = tl.sum(masses)
        target = tl.minimum((u * total.to(tl.float64)).to(tl.int64), total - 1)
        reached = tl.cumsum(masses)
        chosen = tl.min(tl.where(reached > target, blocks, num_blocks - 1))
        before = tl.sum(tl.where(blocks < chosen, masses, 0))
        at = chosen * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(line + at, at < vocab_size, other=-float("inf")).to(tl.float32)
        depth, weight = weigh(x, largest, temperature)
        weight = tl.where((at < vocab_size) & (depth <= limit) & (weight >= min_p), weight, 0.0)
        reached = before + tl.cumsum(integer(weight))
        token = tl.min(tl.where(reached > target, at, vocab_size - 1))
        tl.store(ids_ptr + tl.load(places_ptr + position), token)
        tl.store(next_ids_ptr + tl.load(rows_ptr + position), token)
        tl.store(tickets_ptr + position, 0)


_POINTERS = {
    "rows_ptr": "*i32",
    "places_ptr": "*i32",
    "temperature_ptr": "*fp32",
    "top_k_ptr": "*i32",
    "top_p_ptr": "*fp32",
    "min_p_ptr": "*fp32",
    "seeds_ptr": "*i64",
    "positions_ptr": "*i64",
    "uniforms_ptr": "*fp64",
    "best_ptr": "*fp32",
    "where_ptr": "*i32",
    "tickets_ptr": "*i32",
    "largest_ptr": "*fp32",
    "survey_ptr": "*fp32",
    "bracket_ptr": "*i32",
    "wanted_ptr": "*fp64",
    "counts_ptr": "*i32",
    "list_ptr": "*i32",
    "limit_ptr": "*i32",
    "masses_ptr": "*i64",
    "ids_ptr": "*i32",
    "next_ids_ptr": "*i32",
    "finite_ptr": "*u8",
    "stride": "i64",
    "vocab_size": "i32",
    "null_row": "i32",
}


def _compilation(kernel: triton.JITFunction, logits: str, num_warps: int, **constexprs: int) -> Compilation:
    types = {"logits_ptr": f"*{logits}", **_POINTERS}
    signature = {name: types[name] for name in kernel.arg_names if name in types}
    return Compilation(kernel, signature, constexprs, num_warps)


COMPILATIONS = [
    Compilation(
        uniform_kernel,
        {"seeds_ptr": "*i64", "positions_ptr": "*i64", "out_ptr": "*fp64", "size": "i32"},
        {"BLOCK": 256},
    ),
    *(
        _compilation(largest_kernel, logits, 8, BLOCK=block, BLOCKS=blocks)
        for logits in ("bf16", "fp32")
        for block, blocks in ((1024, 128), (8192, 16))
    ),
    *(
        one
        for logits in ("bf16", "fp32")
        for one in (
            _compilation(survey_kernel, logits, 8, BLOCK=4096),
            _compilation(gather_kernel, logits, 8, BLOCK=4096, BLOCKS=32),
            _compilation(threshold_kernel, logits, 32, WIDTH=2048),
            _compilation(draw_kernel, logits, 8, BLOCK=4096, BLOCKS=32, HAS_UNIFORMS=False),
        )
    ),
]
