"""Computes what the sampling kernels share: weights of tokens, the uniform, which positions draw.

Weights e^z become integers, in units of 2^-44, so that sums are associative: no order of blocks, no atomic
and no bucket can change a draw. Integers are taken out of the sum of a weight and a constant, whose last bits
they are: conversions to 64 bits run at an eighth of the speed.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST: tl.constexpr = tl.constexpr(-120.0)
"""Exponents of 2 are cut here, so that none is a denormal: weights have been less than 2^-44 long before."""


@triton.jit
def weigh(x, largest, temperature):
    """Semantics: e^((x - largest) / temperature), to 1e-7 for likely tokens and 1e-6 at e^-10.

    No operation can be fused with another: a weight is the same bits in every kernel.
    """
    scale = tl.div_rn(1.4426950408889634, temperature)
    return tl.exp2(tl.maximum((x - largest) * scale, LOWEST))


@triton.jit
def mask_of(masks_ptr, bits_ptr, words, position, MASKED: tl.constexpr):
    """(pointer to the bits of the position's mask, whether it has one)."""
    if MASKED:
        mask = tl.load(masks_ptr + position)
        bits_ptr += mask.to(tl.int64) * words
        constrained = mask >= 0
    else:
        constrained = False
    return bits_ptr, constrained


@triton.jit
def allow(x, at, vocab_size, bits, constrained, MASKED: tl.constexpr):
    """Semantics: x[v] where bit v is set or the position has no mask, else -inf; NaN and +inf stay, and fail.

    `MASKED` False leaves out the code, for steps without masks.
    """
    if MASKED:  # noqa: SIM102  decided when the kernel is compiled, the other when it runs
        if constrained:
            word = tl.load(bits + (at >> 5), at < vocab_size, other=0)
            x = tl.where((((word >> (at & 31)) & 1) != 0) | (x != x) | (x == float("inf")), x, -float("inf"))
    return x


@triton.jit
def split(weight):
    """Semantics: (high, low), int32, with high * 2^22 + low = weight in units of 2^-44, rounded.

    0 <= high <= 2^22 and |low| <= 2^21: hundreds of each may be summed in 32 bits.
    """
    shifted = weight + 2.0
    rest = (weight - (shifted - 2.0)) + 7.152557373046875e-07  # 1.5 * 2^-21: its last bit is 2^-44
    high = shifted.to(tl.int32, bitcast=True) - 0x40000000
    return high, rest.to(tl.int32, bitcast=True) - 0x35400000


@triton.jit
def joined(high, low):
    """The 64-bit integer of a split one."""
    return high.to(tl.int64) * 4194304 + low


@triton.jit
def key_of(x, SHIFT: tl.constexpr):
    """Semantics: an int32 in the order of x (fp32, no NaN); SHIFT 16 for values that are bf16's."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)  # -0 is 0
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> SHIFT


@triton.jit
def value_of(key, SHIFT: tl.constexpr):
    """The fp32 number of a key."""
    bits = key.to(tl.int32) << SHIFT
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


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
def draws(row, null_row, temperature, largest):
    """Whether a draw is wanted: not for padding, greedy rows and rows that have failed."""
    return (row != null_row) & (temperature > 0) & (largest < float("inf"))


@triton.jit
def share(top_p, total):
    """What top-p wants of a total; something always."""
    return tl.maximum(tl.ceil(top_p.to(tl.float64) * total.to(tl.float64)).to(tl.int64), 1)
