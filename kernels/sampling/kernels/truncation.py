"""Where top-k and top-p cut, without sorting: measure at pivots, gather what lies between two, bisect.

Suffixes: S positions of the step, V vocabulary, B blocks of it, J measures, L places of a list of candidates.
Every kernel leaves positions alone that do not draw or truncate nothing: their programs end at once.

A threshold is the largest logit t with measure({v : l_v >= t}) >= wanted, where top-k measures tokens and
top-p weights, as in reference.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.sampling import step
from kernels.sampling.kernels.weights import (
    DEEPEST,
    LOWEST,
    UNIT,
    draws,
    exponential,
    integer,
    truncates,
    weigh,
)

NUM_PIVOTS: tl.constexpr = tl.constexpr(step.NUM_PIVOTS)
SURVEY: tl.constexpr = tl.constexpr(step.SURVEY)
LIST: tl.constexpr = tl.constexpr(step.CANDIDATES)
MARGIN: tl.constexpr = tl.constexpr(1e-4)
"""Far above the rounding of an fp32 sum: a bracket that is a little wide costs nothing."""


@triton.jit
def survey_kernel(
    logits_ptr,
    stride,
    vocab_size,
    null_row,
    rows_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    largest_ptr,
    survey_ptr,
    BLOCK: tl.constexpr,
):
    """Semantics: survey[s, b, j] = sum of what row s measures over v in block b with z >= pivot[s, j].

    A row with top-k measures tokens, one with top-p alone their weights. Pivots divide evenly a range of z
    that is sure to hold top-p's threshold: the V tokens below log((1 - p) / V) cannot hold a share of 1 - p,
    as the largest alone weighs 1.

    Shapes: as in largest_kernel; temperature_S and top_p_S fp32, top_k_S int32, survey_SBJ fp32.
    """
    block, position = tl.program_id(0), tl.program_id(1)
    if not draws(position, null_row, rows_ptr, temperature_ptr, largest_ptr):
        return
    top_k, top_p = tl.load(top_k_ptr + position), tl.load(top_p_ptr + position)
    if not truncates(top_k, top_p, vocab_size):
        return
    counts = (top_k >= 1) & (top_k < vocab_size)
    share = tl.where(counts, 0.999, top_p)
    deepest = tl.minimum(tl.log(vocab_size / (1.0 - share)) + 0.1, LOWEST)
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < vocab_size
    line = logits_ptr + position.to(tl.int64) * stride
    x = tl.load(line + at, inside, other=-float("inf")).to(tl.float32)
    depth, weight = weigh(x, tl.load(largest_ptr + position), tl.load(temperature_ptr + position))
    weight = tl.where(inside, weight, 0.0)
    measured = tl.where(counts, inside.to(tl.float32), weight)
    columns = tl.arange(0, SURVEY)
    found = tl.where(columns == NUM_PIVOTS, tl.sum(weight), tl.where(columns > NUM_PIVOTS, deepest, 0.0))
    for j in tl.static_range(NUM_PIVOTS):
        pivot = (deepest * ((j + 1) / NUM_PIVOTS)).to(tl.int32, bitcast=True)
        found = tl.where(columns == j, tl.sum(tl.where(depth <= pivot, measured, 0.0)), found)
    line = (position * tl.num_programs(0) + block) * SURVEY
    tl.store(survey_ptr + line + columns, found)


@triton.jit
def gather_kernel(
    logits_ptr,
    stride,
    vocab_size,
    null_row,
    rows_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    largest_ptr,
    survey_ptr,
    bracket_ptr,
    wanted_ptr,
    counts_ptr,
    list_ptr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Semantics: list[s] = the depths in (bracket[s, 0], bracket[s, 1]], in any order; counts[s] of them.

    The bracket is the pair of neighbouring pivots between which the survey found the threshold; wanted[s] is
    (what is to be measured down to the threshold, how much of it lies above the bracket). For rows with both
    top-k and top-p the bracket begins at the top, since top-p's threshold lies above top-k's. What does not
    fit in the list is counted only.

    Shapes: as in survey_kernel; bracket_S2 int32, wanted_S2 fp64, counts_S int32 (zeros), list_SL int32.
    """
    block, position = tl.program_id(0), tl.program_id(1)
    if not draws(position, null_row, rows_ptr, temperature_ptr, largest_ptr):
        return
    top_k, top_p = tl.load(top_k_ptr + position), tl.load(top_p_ptr + position)
    if not truncates(top_k, top_p, vocab_size):
        return
    num_blocks = tl.num_programs(0)
    blocks, columns = tl.arange(0, BLOCKS), tl.arange(0, SURVEY)
    lines = (position * num_blocks + blocks) * SURVEY
    surveyed = tl.load(
        survey_ptr + lines[:, None] + columns[None, :], blocks[:, None] < num_blocks, other=0.0
    )
    found = tl.sum(surveyed.to(tl.float64), axis=0)
    deepest = tl.load(survey_ptr + position * num_blocks * SURVEY + NUM_PIVOTS + 1)
    counts = (top_k >= 1) & (top_k < vocab_size)
    total = tl.sum(tl.where(columns == NUM_PIVOTS, found, 0.0))
    wanted = tl.where(counts, top_k.to(tl.float64), top_p.to(tl.float64) * total)
    pivots = columns < NUM_PIVOTS
    depths = (deepest * ((columns + 1).to(tl.float32) / NUM_PIVOTS)).to(tl.int32, bitcast=True)
    bottom = tl.min(tl.where(pivots & (found >= wanted * (1 + MARGIN)), depths, DEEPEST))
    both = counts & (top_p < 1.0)
    above = pivots & (found < tl.where(both, 0.0, wanted * (1 - MARGIN)))
    top = tl.max(tl.where(above, depths, -1))
    if block == 0:
        tl.store(bracket_ptr + 2 * position, top)
        tl.store(bracket_ptr + 2 * position + 1, bottom)
        tl.store(wanted_ptr + 2 * position, wanted)
        tl.store(wanted_ptr + 2 * position + 1, tl.max(tl.where(above, found, 0.0)))
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < vocab_size
    line = logits_ptr + position.to(tl.int64) * stride
    x = tl.load(line + at, inside, other=-float("inf")).to(tl.float32)
    depth, _ = weigh(x, tl.load(largest_ptr + position), tl.load(temperature_ptr + position))
    chosen = inside & (depth > top) & (depth <= bottom)
    order = tl.cumsum(chosen.to(tl.int32))
    num = tl.sum(chosen.to(tl.int32))
    if num > 0:
        to = tl.atomic_add(counts_ptr + position, num) + order - 1
        tl.store(list_ptr + position.to(tl.int64) * LIST + to, depth, chosen & (to < LIST))


@triton.jit
def _search(depth, measured, wanted, low, high):
    """Semantics: min { t in (low, high] : sum of measured[i] with depth[i] <= t is at least wanted }."""
    while high - low > 1:
        middle = low + (high - low) // 2
        enough = tl.sum(tl.where(depth <= middle, measured, 0)) >= wanted
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle)
    return high


@triton.jit
def _search_row(
    line, vocab_size, largest, temperature, counts, limit, wanted, low, high, WIDTH: tl.constexpr
):
    """`_search` over all tokens of a row with depth <= limit, three bits of the answer per pass."""
    while high - low > 1:
        width = tl.maximum((high - low) // 8, 1)
        s1 = tl.zeros((WIDTH,), tl.int64)
        s2 = tl.zeros((WIDTH,), tl.int64)
        s3 = tl.zeros((WIDTH,), tl.int64)
        s4 = tl.zeros((WIDTH,), tl.int64)
        s5 = tl.zeros((WIDTH,), tl.int64)
        s6 = tl.zeros((WIDTH,), tl.int64)
        s7 = tl.zeros((WIDTH,), tl.int64)
        for start in range(0, vocab_size, WIDTH):
            at = start + tl.arange(0, WIDTH)
            x = tl.load(line + at, at < vocab_size, other=-float("inf")).to(tl.float32)
            depth, weight = weigh(x, largest, temperature)
            measured = tl.where(counts, 1, integer(weight))
            measured = tl.where((at < vocab_size) & (depth <= limit), measured, 0)
            s1 += tl.where(depth <= low + width, measured, 0)
            s2 += tl.where(depth <= low + 2 * width, measured, 0)
            s3 += tl.where(depth <= low + 3 * width, measured, 0)
            s4 += tl.where(depth <= low + 4 * width, measured, 0)
            s5 += tl.where(depth <= low + 5 * width, measured, 0)
            s6 += tl.where(depth <= low + 6 * width, measured, 0)
            s7 += tl.where(depth <= low + 7 * width, measured, 0)
        enough = (
            (tl.sum(s1) >= wanted).to(tl.int32)
            + (tl.sum(s2) >= wanted).to(tl.int32)
            + (tl.sum(s3) >= wanted).to(tl.int32)
            + (tl.sum(s4) >= wanted).to(tl.int32)
            + (tl.sum(s5) >= wanted).to(tl.int32)
            + (tl.sum(s6) >= wanted).to(tl.int32)
            + (tl.sum(s7) >= wanted).to(tl.int32)
        )
        # Sums rise with the pivot: `enough` of the seven are large enough, the last ones.
        new_high = tl.where(enough > 0, tl.minimum(low + (8 - enough) * width, high), high)
        low = tl.minimum(low + (7 - enough) * width, new_high - 1)
        high = new_high
    return high


@triton.jit
def _row_mass(line, vocab_size, largest, temperature, limit, WIDTH: tl.constexpr):
    """Semantics: sum of the weights with depth <= limit, as an integer."""
    mass = tl.zeros((WIDTH,), tl.int64)
    for start in range(0, vocab_size, WIDTH):
        at = start + tl.arange(0, WIDTH)
        x = tl.load(line + at, at < vocab_size, other=-float("inf")).to(tl.float32)
        depth, weight = weigh(x, largest, temperature)
        mass += tl.where((at < vocab_size) & (depth <= limit), integer(weight), 0)
    return tl.sum(mass)


@triton.jit
def _limit_of_list(candidates, num, by_count, by_mass, top_p, wanted, top, bottom):
    """The threshold among gathered depths, which stay in registers."""
    places = tl.arange(0, LIST)
    depth = tl.load(candidates + places, places < num, other=DEEPEST + 1)
    mass = integer(tl.where(places < num, exponential(-depth.to(tl.float32, bitcast=True)), 0.0))
    measured = tl.where(by_count, (places < num).to(tl.int64), mass)
    limit = _search(depth, measured, wanted, top, bottom)
    if by_count & by_mass:
        kept = tl.sum(tl.where(depth <= limit, mass, 0))
        share = tl.ceil(top_p.to(tl.float64) * kept.to(tl.float64)).to(tl.int64)
        limit = _search(depth, mass, share, tl.full((), -1, tl.int32), limit)
    return limit


@triton.jit
def _limit_of_row(
    line, vocab_size, largest, temperature, by_count, by_mass, top_p, wanted, top, bottom, WIDTH: tl.constexpr
):
    """The threshold by passes over the row."""
    limit = _search_row(line, vocab_size, largest, temperature, by_count, DEEPEST, wanted, top, bottom, WIDTH)
    if by_count & by_mass:
        kept = _row_mass(line, vocab_size, largest, temperature, limit, WIDTH)
        share = tl.ceil(top_p.to(tl.float64) * kept.to(tl.float64)).to(tl.int64)
        nothing = tl.full((), -1, tl.int32)
        limit = _search_row(
            line, vocab_size, largest, temperature, False, limit, share, nothing, limit, WIDTH
        )
    return limit


@triton.jit
def threshold_kernel(
    logits_ptr,
    stride,
    vocab_size,
    null_row,
    rows_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    largest_ptr,
    bracket_ptr,
    wanted_ptr,
    counts_ptr,
    list_ptr,
    limit_ptr,
    WIDTH: tl.constexpr,
):
    """Semantics: limit[s] = the largest depth that top-k and top-p keep.

    By bisection over the gathered candidates in registers; where they are too many for that (nearly flat
    rows), by passes over the row. Sets counts[s] back to 0.

    Shapes: as in gather_kernel; limit_S int32.
    """
    position = tl.program_id(0)
    if not draws(position, null_row, rows_ptr, temperature_ptr, largest_ptr):
        return
    top_k, top_p = tl.load(top_k_ptr + position), tl.load(top_p_ptr + position)
    if not truncates(top_k, top_p, vocab_size):
        return
    by_count = (top_k >= 1) & (top_k < vocab_size)
    by_mass = top_p < 1.0
    top, bottom = tl.load(bracket_ptr + 2 * position), tl.load(bracket_ptr + 2 * position + 1)
    wanted, above = tl.load(wanted_ptr + 2 * position), tl.load(wanted_ptr + 2 * position + 1)
    unit = tl.where(by_count, 1.0, UNIT)
    num = tl.load(counts_ptr + position)
    if num <= LIST:
        candidates = list_ptr + position.to(tl.int64) * LIST
        below = tl.ceil((wanted - above) * unit).to(tl.int64)
        limit = _limit_of_list(candidates, num, by_count, by_mass, top_p, below, top, bottom)
    else:
        line = logits_ptr + position.to(tl.int64) * stride
        largest, temperature = tl.load(largest_ptr + position), tl.load(temperature_ptr + position)
        whole = tl.ceil(wanted * unit).to(tl.int64)
        limit = _limit_of_row(
            line, vocab_size, largest, temperature, by_count, by_mass, top_p, whole, top, bottom, WIDTH
        )
    tl.store(limit_ptr + position, limit)
    tl.store(counts_ptr + position, 0)
