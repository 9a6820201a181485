"""What the sampling kernels have in common: weights of tokens, the uniform, who draws.

Two things make draws exact and independent of how a row is split. A logit's distance below its row's largest
becomes an integer, `depth`: the bits of |z|, z = (logit - largest) / temperature, so that thresholds are
compared and searched without rounding. And weights e^z become integers too, in units of 2^-44, so that sums
are associative: no order of blocks, no atomic and no bucket can change a draw.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.backend import INTERPRETING

INTERPRETED: tl.constexpr = tl.constexpr(INTERPRETING)
LOWEST: tl.constexpr = tl.constexpr(86.0)
"""|z| is cut here: e^-86 is normal in fp32, and less than 2^-44 since e^-31."""
DEEPEST: tl.constexpr = tl.constexpr(0x42AE0000)
"""The bits of 87.0: every token lies above."""
UNIT: tl.constexpr = tl.constexpr(float(1 << 44))
"""A weight of 1 as an integer: 2^18 of them stay below 2^63, and e^-16 still has 20 bits."""


@triton.jit
def exponential(z):
    """Semantics: e^z for z in [-LOWEST, 0], to about an ulp."""
    # e^z = 2^n e^r with |r| <= ln(2) / 2 (Cody and Waite); adding 1.5 * 2^23 rounds to the integer n.
    shifted = z * 1.4426950408889634 + 12582912.0
    n = shifted - 12582912.0
    r = tl.fma(n, 2.1219444005469057e-4, tl.fma(n, -0.693359375, z))
    bits = tl.exp2(r * 1.4426950408889634).to(tl.int32, bitcast=True)
    return (bits + (shifted.to(tl.int32, bitcast=True) << 23)).to(tl.float32, bitcast=True)


@triton.jit
def weigh(x, largest, temperature):
    """Semantics: (depth, e^z) of logits, z = (x - largest) / temperature rounded once, as torch does."""
    distance = tl.maximum(x - largest, temperature * -LOWEST)
    if INTERPRETED:
        z = tl.div_rn(distance, temperature + tl.zeros_like(distance))
    else:
        # Markstein: one correction with the exact remainder rounds a quotient correctly, in 3 instructions.
        inverse = tl.div_rn(1.0, temperature)
        quotient = distance * inverse
        z = tl.fma(tl.fma(-quotient, temperature, distance), inverse, quotient)
    return tl.abs(z).to(tl.int32, bitcast=True), exponential(z)


@triton.jit
def integer(weight):
    """Semantics: the weight in units of 2^-44, rounded down."""
    return (weight * UNIT).to(tl.int64)


@triton.jit
def _mix(x):
    """The finaliser of SplitMix64."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def uniform(seed, position):
    """Semantics: that of `reference.uniform`, the same bits."""
    golden = tl.full((), 0x9E3779B97F4A7C15, tl.uint64)
    stream = _mix(seed.to(tl.uint64, bitcast=True) + golden)
    bits = _mix(stream + (position.to(tl.uint64, bitcast=True) + 1) * golden)
    return ((bits >> 12).to(tl.float64) + 0.5) * 2.220446049250313e-16


@triton.jit
def truncates(top_k, top_p, vocab_size):
    """Whether top-k or top-p cuts anything."""
    return ((top_k >= 1) & (top_k < vocab_size)) | (top_p < 1.0)


@triton.jit
def draws(position, null_row, rows_ptr, temperature_ptr, largest_ptr):
    """Whether a draw is wanted: not for padding, greedy rows and rows that have failed."""
    row = tl.load(rows_ptr + position)
    temperature = tl.load(temperature_ptr + position)
    wanted = (row != null_row) & (temperature > 0)
    return wanted & (tl.load(largest_ptr + position, wanted, other=float("inf")) < float("inf"))
