"""Finds where top-k and top-p cut, without sorting: guesses from a sample, gathers what lies above, bisects.

Suffixes: S positions of the step, V vocabulary, L places of a list of candidates. Every kernel leaves
positions alone that do not draw or truncate nothing: their programs end at once.

A threshold is the largest logit t with measure({v : l_v >= t}) >= wanted, where top-k measures tokens and
top-p weights, as in reference.py. The sample only decides how many candidates there are; whether they reach
down to the threshold is checked exactly, and where they do not the row is searched as a whole.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.sampling import step
from kernels.sampling.kernels.row_search import limit_of_row
from kernels.sampling.kernels.weights import (
    allow,
    draws,
    joined,
    key_of,
    mask_of,
    share,
    split,
    truncates,
    value_of,
    weigh,
)

LIST: tl.constexpr = tl.constexpr(step.CANDIDATES)
FEW: tl.constexpr = tl.constexpr(2048)
"""Candidates for which two registers of each thread are enough: small top-k."""
SAMPLE: tl.constexpr = tl.constexpr(4096)
RUN: tl.constexpr = tl.constexpr(32)
"""Neighbours in the sample: one sector of memory or two. Vocabularies are ordered, so it is spread out."""
AIM: tl.constexpr = tl.constexpr(14_000)
"""Candidates for top-p: the sample's rank is off by 22 in 450 (one sigma), so 16384 are not exceeded."""


@triton.jit
def sample_kernel(
    logits_ptr,
    stride,
    vocab_size,
    null_row,
    rows_ptr,
    masks_ptr,
    bits_ptr,
    words,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    largest_ptr,
    bottom_ptr,
    SHIFT: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Semantics: bottom[s] = a logit that top-k tokens lie above with near certainty, or AIM for top-p alone.

    By the order statistics of 4096 tokens: k of V are k' = 4096 k / V of them, give or take sqrt(k').

    Shapes: as in largest_kernel; temperature_S and top_p_S fp32, top_k_S int32, bottom_S fp32.
    """
    position = tl.program_id(0)
    # All parameters at once: one wait for memory, not one for each.
    top_k, top_p = tl.load(top_k_ptr + position), tl.load(top_p_ptr + position)
    row, temperature = tl.load(rows_ptr + position), tl.load(temperature_ptr + position)
    largest = tl.load(largest_ptr + position)
    if not (draws(row, null_row, temperature, largest) & truncates(top_k, top_p, vocab_size)):
        return
    if vocab_size <= LIST:
        tl.store(bottom_ptr + position, -float("inf"))
        return
    share = 1.0 * SAMPLE / vocab_size
    of_k = share * top_k
    by_count = (top_k >= 1) & (top_k < vocab_size)
    rank = tl.where(by_count, of_k + 5.0 * tl.sqrt(tl.maximum(of_k, 0.0)) + 8.0, share * AIM)
    place = tl.arange(0, SAMPLE)
    at = (place // RUN) * (vocab_size // (SAMPLE // RUN)) + place % RUN
    x = tl.load(logits_ptr + position.to(tl.int64) * stride + at).to(tl.float32)
    bits, constrained = mask_of(masks_ptr, bits_ptr, words, position, MASKED)
    x = allow(x, at, vocab_size, bits, constrained, MASKED)
    key = key_of(x, SHIFT)
    low = key_of(tl.full((), -float("inf"), tl.float32), SHIFT).to(tl.int64)
    high = key_of(largest, SHIFT).to(tl.int64) + 1
    wanted = tl.minimum(rank, 1.0 * SAMPLE + 1).to(tl.int32)
    tl.store(bottom_ptr + position, value_of(_search_counts(key, wanted, low, high), SHIFT))


@triton.jit
def gather_kernel(
    logits_ptr,
    stride,
    vocab_size,
    null_row,
    rows_ptr,
    masks_ptr,
    bits_ptr,
    words,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    largest_ptr,
    bottom_ptr,
    counts_ptr,
    masses_ptr,
    list_ptr,
    BLOCK: tl.constexpr,
    LANES: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Semantics: list[s] = the finite logits >= bottom[s], in any order; counts[s] of them.

    What does not fit in the list is counted only. masses[s, b] = the sum of block b's weights.

    Shapes: as in sample_kernel; counts_S int32 (zeros), masses_SB fp32, list_SL fp32.
    """
    block, position = tl.program_id(0), tl.program_id(1)
    # All parameters at once: one wait for memory, not one for each.
    top_k, top_p = tl.load(top_k_ptr + position), tl.load(top_p_ptr + position)
    row, temperature = tl.load(rows_ptr + position), tl.load(temperature_ptr + position)
    largest, bottom = tl.load(largest_ptr + position), tl.load(bottom_ptr + position)
    if not (draws(row, null_row, temperature, largest) & truncates(top_k, top_p, vocab_size)):
        return
    line = logits_ptr + position.to(tl.int64) * stride
    bits, constrained = mask_of(masks_ptr, bits_ptr, words, position, MASKED)
    # One token per thread at a time: each thread counts its own, threads scan their counts once, and nothing
    # changes hands. Sixteen bytes per thread at a time take twice the instructions.
    nums = tl.zeros((LANES,), tl.int32)
    mass = tl.zeros((LANES,), tl.float32)
    for index in tl.static_range(BLOCK // LANES):
        at = block * BLOCK + index * LANES + tl.arange(0, LANES)
        x = tl.load(line + at, at < vocab_size, other=-float("inf")).to(tl.float32)
        x = allow(x, at, vocab_size, bits, constrained, MASKED)
        nums += ((x >= bottom) & (x > -float("inf"))).to(tl.int32)
        mass += weigh(x, largest, temperature)
    tl.store(masses_ptr + position * tl.num_programs(0) + block, tl.sum(mass))
    num = tl.sum(nums)
    if num > 0:
        base = tl.atomic_add(counts_ptr + position, num, sem="relaxed")
        if base + num <= LIST:
            to = list_ptr + position.to(tl.int64) * LIST + (base + tl.cumsum(nums) - nums)
            for index in tl.static_range(BLOCK // LANES):
                at = block * BLOCK + index * LANES + tl.arange(0, LANES)
                x = tl.load(line + at, at < vocab_size, other=-float("inf")).to(tl.float32)
                x = allow(x, at, vocab_size, bits, constrained, MASKED)
                chosen = (x >= bottom) & (x > -float("inf"))
                tl.store(to, x, chosen)
                to += chosen.to(tl.int32)


@triton.jit
def _search_counts(key, wanted, low, high):
    """Semantics: max { t in [low, high) : so many keys are >= t as are wanted }, or low."""
    while high - low > 1:
        middle = low + (high - low) // 2
        enough = tl.sum((key >= middle.to(tl.int32)).to(tl.int32)) >= wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return low


@triton.jit
def _mass_above(key, high, low, bottom):
    """Sum of the split weights with keys >= bottom: four of a thread's own in 32 bits, then in 64."""
    quarters: tl.constexpr = key.shape[0] // 4
    kept_high = tl.sum(tl.reshape(tl.where(key >= bottom, high, 0), (quarters, 4)), axis=1)
    kept_low = tl.sum(tl.reshape(tl.where(key >= bottom, low, 0), (quarters, 4)), axis=1)
    return tl.sum(joined(kept_high, kept_low))


@triton.jit
def _search_mass(key, weight_high, weight_low, wanted, low, high):
    """Semantics: max { t in [low, high) : the weights of keys >= t sum to what is wanted }, or low."""
    while high - low > 1:
        middle = low + (high - low) // 2
        enough = _mass_above(key, weight_high, weight_low, middle.to(tl.int32)) >= wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return low


@triton.jit
def _search_list(
    candidates,
    num,
    complete,
    largest,
    temperature,
    top_p,
    by_count,
    wanted,
    low,
    high,
    SHIFT: tl.constexpr,
    SIZE: tl.constexpr,
):
    """(the threshold's key, whether the candidates reach down to it: `complete` ones always do)."""
    places = tl.arange(0, SIZE)
    there = places < num
    x = tl.load(candidates + places, there, other=-float("inf"))
    key = tl.where(there, key_of(x, SHIFT), -2147483648)
    weight_high, weight_low = split(weigh(x, largest, temperature))
    if by_count:
        reaches = (num >= wanted) | complete
        if reaches:
            low = _search_counts(key, wanted.to(tl.int32), low, high)
            if top_p < 1.0:
                kept = _mass_above(key, weight_high, weight_low, low.to(tl.int32))
                low = _search_mass(key, weight_high, weight_low, share(top_p, kept), low, high)
    else:
        reaches = (_mass_above(key, weight_high, weight_low, low.to(tl.int32)) >= wanted) | complete
        if reaches:
            low = _search_mass(key, weight_high, weight_low, wanted, low, high)
    return low, reaches


@triton.jit
def threshold_kernel(
    logits_ptr,
    stride,
    vocab_size,
    null_row,
    rows_ptr,
    masks_ptr,
    bits_ptr,
    words,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    largest_ptr,
    bottom_ptr,
    counts_ptr,
    masses_ptr,
    list_ptr,
    limit_ptr,
    num_blocks,
    BLOCKS: tl.constexpr,
    SHIFT: tl.constexpr,
    WIDTH: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Semantics: limit[s] = the smallest logit that top-k and top-p keep.

    By bisection over the gathered candidates, in registers; where they do not reach down to it or are too
    many, by passes over the row. Sets counts[s] back to 0.

    Shapes: as in gather_kernel; limit_S fp32.
    """
    position = tl.program_id(0)
    # All parameters at once: one wait for memory, not one for each.
    top_k, top_p = tl.load(top_k_ptr + position), tl.load(top_p_ptr + position)
    row, temperature = tl.load(rows_ptr + position), tl.load(temperature_ptr + position)
    largest = tl.load(largest_ptr + position)
    if not (draws(row, null_row, temperature, largest) & truncates(top_k, top_p, vocab_size)):
        return
    by_count = (top_k >= 1) & (top_k < vocab_size)
    num = tl.load(counts_ptr + position)
    bottom = tl.load(bottom_ptr + position)
    complete = bottom == -float("inf")  # every finite logit is in the list, or too many are
    blocks = tl.arange(0, BLOCKS)
    masses = tl.load(masses_ptr + position * num_blocks + blocks, blocks < num_blocks, other=0.0)
    total = tl.sum(masses.to(tl.float64)) * 17592186044416.0  # in units of 2^-44
    wanted = tl.where(by_count, top_k.to(tl.int64), share(top_p, total))
    wanted = tl.where(by_count & complete, tl.minimum(wanted, num.to(tl.int64)), wanted)
    candidates = list_ptr + position.to(tl.int64) * LIST
    limit = key_of(bottom, SHIFT).to(tl.int64)
    high = key_of(largest, SHIFT).to(tl.int64) + 1
    reaches = num < 0
    if num <= FEW:
        limit, reaches = _search_list(
            candidates, num, complete, largest, temperature, top_p, by_count, wanted, limit, high, SHIFT, FEW
        )
    elif num <= LIST:
        limit, reaches = _search_list(
            candidates, num, complete, largest, temperature, top_p, by_count, wanted, limit, high, SHIFT, LIST
        )
    if not reaches:
        line = logits_ptr + position.to(tl.int64) * stride
        bits, constrained = mask_of(masks_ptr, bits_ptr, words, position, MASKED)
        limit = limit_of_row(
            line,
            vocab_size,
            bits,
            constrained,
            largest,
            temperature,
            top_p,
            by_count,
            wanted,
            high,
            SHIFT,
            WIDTH,
            MASKED,
        )
    tl.store(limit_ptr + position, value_of(limit, SHIFT))
    tl.store(counts_ptr + position, 0)
