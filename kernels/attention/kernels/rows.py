"""Quantises finished rows: what the projection after attention reads on an FP8 base."""

from __future__ import annotations

import triton
import triton.language as tl

E4M3_MAX = tl.constexpr(448.0)
SMALLEST_NORMAL = tl.constexpr(1.1754943508222875e-38)


@triton.jit
def quantize_rows_kernel(
    out_ptr,
    quantized_ptr,
    row_scale_ptr,
    positions_ptr,
    out_stride,
    WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    STARTS_EARLY: tl.constexpr,
):
    """Semantics: row_scale[t] = max_i |out[t, i]| / 448; quantized[t, i] = e4m3(out[t, i] / row_scale[t]),
    for every token t with positions[t] >= 0.

    out [T, WIDTH] bf16, quantized [T, WIDTH] e4m3, row_scale_T fp32, positions_T int32. One program per
    token. A kernel of its own: when the last KV head of a token did it inside decode, its wait for the others
    cost more (2.4 us at 1 row and 6 at 256 of the 8B shape) than another launch.
    """
    if STARTS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0)
    position = tl.load(positions_ptr + token)
    i = tl.arange(0, BLOCK_WIDTH)
    if STARTS_EARLY:
        tl.extra.cuda.gdc_wait()
    x = tl.load(out_ptr + token.to(tl.int64) * out_stride + i, mask=i < WIDTH, other=0.0).to(tl.float32)
    if position >= 0:
        scale = tl.maximum(tl.math.div_rn(tl.max(tl.abs(x), 0), E4M3_MAX), SMALLEST_NORMAL)
        tl.store(row_scale_ptr + token, scale)
        scaled = x * tl.math.div_rn(1.0, scale)
        quantized = quantized_ptr + token.to(tl.int64) * WIDTH + i
        tl.store(quantized, scaled.to(tl.float8e4nv), mask=i < WIDTH)
