"""Quantising finished rows: what the projection after attention reads on an FP8 base.

Owns the arithmetic of one row, shared by the kernel over all tokens and by decode's last program of a token,
so that both give the same bits. Refuses to know how rows came to be.
"""

from __future__ import annotations

import triton
import triton.language as tl

E4M3_MAX = tl.constexpr(448.0)
SMALLEST_NORMAL = tl.constexpr(1.1754943508222875e-38)


@triton.jit
def quantize_row(
    out_ptr, quantized_ptr, row_scale_ptr, token, out_stride, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr
):
    """Semantics: scale = max_i |out[token, i]| / 448; quantized[token, i] = e4m3(out[token, i] / scale)."""
    i = tl.arange(0, BLOCK_WIDTH)
    # Other programs may have written the row a moment ago: past the first cache, which would not know.
    x = tl.load(
        out_ptr + token.to(tl.int64) * out_stride + i, mask=i < WIDTH, other=0.0, cache_modifier=".cg"
    )
    x = x.to(tl.float32)
    scale = tl.maximum(tl.math.div_rn(tl.max(tl.abs(x), 0), E4M3_MAX), SMALLEST_NORMAL)
    tl.store(row_scale_ptr + token, scale)
    scaled = x * tl.math.div_rn(1.0, scale)
    tl.store(quantized_ptr + token.to(tl.int64) * WIDTH + i, scaled.to(tl.float8e4nv), mask=i < WIDTH)


@triton.jit
def quantize_rows_kernel(
    out_ptr,
    quantized_ptr,
    row_scale_ptr,
    positions_ptr,
    out_stride,
    WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):
    """Semantics: `quantize_row` for every token t with positions[t] >= 0.

    out [T, WIDTH] bf16, quantized [T, WIDTH] e4m3, row_scale_T fp32, positions_T int32. One program per token.
    """
    token = tl.program_id(0)
    if tl.load(positions_ptr + token) >= 0:
        quantize_row(out_ptr, quantized_ptr, row_scale_ptr, token, out_stride, WIDTH, BLOCK_WIDTH)
