"""Finds where top-k and top-p cut by passes over a whole row, where gathered candidates do not reach.

Suffixes: V vocabulary. A measure of tokens is their number for top-k and their weight for top-p.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.sampling.kernels.weights import allow, joined, key_of, share, split, weigh


@triton.jit
def _measure(x, key, floor, pivot, largest, temperature, by_count):
    """Split measure of the tokens with keys >= both floor and pivot."""
    kept = (key >= floor) & (key >= pivot)
    high, low = split(tl.where(kept & (by_count == 0), weigh(x, largest, temperature), 0.0))
    return high, tl.where(by_count, kept.to(tl.int32), low)


@triton.jit
def _measure_row(
    line,
    vocab_size,
    bits,
    constrained,
    largest,
    temperature,
    by_count,
    floor,
    SHIFT: tl.constexpr,
    WIDTH: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Measure of a whole row's tokens with keys >= floor."""
    high = tl.zeros((WIDTH,), tl.int32)
    low = tl.zeros((WIDTH,), tl.int32)
    for start in range(0, vocab_size, WIDTH):
        at = start + tl.arange(0, WIDTH)
        x = tl.load(line + at, at < vocab_size, other=-float("inf")).to(tl.float32)
        x = allow(x, at, vocab_size, bits, constrained, MASKED)
        key = tl.where(at < vocab_size, key_of(x, SHIFT), -2147483648)
        more_high, more_low = _measure(x, key, floor, floor, largest, temperature, by_count)
        high += more_high
        low += more_low
    return tl.sum(joined(high, low))


@triton.jit
def _search_row(
    line,
    vocab_size,
    bits,
    constrained,
    largest,
    temperature,
    by_count,
    floor,
    wanted,
    low,
    high,
    SHIFT: tl.constexpr,
    WIDTH: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Returns max { t in [low, high) : tokens with keys >= max(t, floor) measure what is wanted }, or low."""
    while high - low > 1:
        step = tl.maximum((high - low) // 4, 1)
        first = (low + step).to(tl.int32)
        second = tl.minimum(low + 2 * step, high).to(tl.int32)
        third = tl.minimum(low + 3 * step, high).to(tl.int32)
        high_1 = tl.zeros((WIDTH,), tl.int32)
        high_2 = tl.zeros((WIDTH,), tl.int32)
        high_3 = tl.zeros((WIDTH,), tl.int32)
        low_1 = tl.zeros((WIDTH,), tl.int32)
        low_2 = tl.zeros((WIDTH,), tl.int32)
        low_3 = tl.zeros((WIDTH,), tl.int32)
        for start in range(0, vocab_size, WIDTH):
            at = start + tl.arange(0, WIDTH)
            x = tl.load(line + at, at < vocab_size, other=-float("inf")).to(tl.float32)
            x = allow(x, at, vocab_size, bits, constrained, MASKED)
            key = tl.where(at < vocab_size, key_of(x, SHIFT), -2147483648)
            more_high, more_low = _measure(x, key, floor, first, largest, temperature, by_count)
            high_1 += more_high
            low_1 += more_low
            high_2 += tl.where(key >= second, more_high, 0)
            low_2 += tl.where(key >= second, more_low, 0)
            high_3 += tl.where(key >= third, more_high, 0)
            low_3 += tl.where(key >= third, more_low, 0)
        enough_1 = tl.sum(joined(high_1, low_1)) >= wanted
        enough_2 = tl.sum(joined(high_2, low_2)) >= wanted
        enough_3 = tl.sum(joined(high_3, low_3)) >= wanted
        # Measures fall as the pivot rises: the last that is large enough is below the answer.
        new_high = tl.where(
            enough_3, high, tl.where(enough_2, third, tl.where(enough_1, second, first).to(tl.int64))
        )
        low = tl.where(
            enough_3, third, tl.where(enough_2, second, tl.where(enough_1, first.to(tl.int64), low))
        )
        high = tl.minimum(new_high, high)
    return low


@triton.jit
def limit_of_row(
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
    SHIFT: tl.constexpr,
    WIDTH: tl.constexpr,
    MASKED: tl.constexpr,
):
    """The threshold's key, by passes over the row."""
    # Below it weights are 0: what is kept there makes no difference.
    low = key_of(tl.maximum(largest - 90.0 * temperature, -3.3e38), SHIFT).to(tl.int64)
    floor = (low - 1).to(tl.int32)
    low = _search_row(
        line,
        vocab_size,
        bits,
        constrained,
        largest,
        temperature,
        by_count,
        floor,
        wanted,
        low,
        high,
        SHIFT,
        WIDTH,
        MASKED,
    )
    if by_count & (top_p < 1.0):
        floor = low.to(tl.int32)
        never = by_count & (top_p >= 1.0)
        kept = _measure_row(
            line, vocab_size, bits, constrained, largest, temperature, never, floor, SHIFT, WIDTH, MASKED
        )
        low = _search_row(
            line,
            vocab_size,
            bits,
            constrained,
            largest,
            temperature,
            never,
            floor,
            share(top_p, kept),
            low,
            high,
            SHIFT,
            WIDTH,
            MASKED,
        )
    return low
