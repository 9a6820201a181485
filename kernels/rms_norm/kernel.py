"""Computes RMSNorm on a GPU: residual addition, norm and quantisation in one pass over the row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.activation import FP8_MAX, SMALLEST_SCALE, AdapterDelta
from kernels.backend import e4m3_output
from kernels.compilation import Compilation
from kernels.overlap import starts_early

MAX_WARPS = 16


@triton.jit
def _sum_and_max(sum_a, max_a, sum_b, max_b):
    return sum_a + sum_b, tl.maximum(max_a, max_b)


@triton.jit
def store_norm(
    y,
    weight_H,
    out_at,
    quantized_ptr,
    quantized_scale_ptr,
    rows_T,
    columns_H,
    valid_T,
    mask,
    eps,
    out_type: tl.constexpr,
    H: tl.constexpr,
    FP8_MAX: tl.constexpr,
    SMALLEST_SCALE: tl.constexpr,
):
    """Norms rows `y` [T, H] that are in registers, and stores them as they are, quantised, or both."""
    weighted = y * weight_H[None, :]
    # Rounding and scaling keep the order of magnitudes: the largest before them is the largest after.
    squares_T, largest_T = tl.reduce((y * y, tl.abs(weighted)), 1, _sum_and_max)
    inverse_T = 1.0 / tl.sqrt(squares_T / H + eps)
    normed = weighted * inverse_T[:, None]
    rounded = normed.to(out_type)
    if out_at is not None:
        tl.store(out_at, rounded, mask=mask)
    if quantized_ptr is not None:
        largest_T = (largest_T * inverse_T).to(out_type).to(tl.float32)
        row_scale_T = tl.maximum(largest_T * (1.0 / FP8_MAX), SMALLEST_SCALE)
        tl.store(quantized_scale_ptr + rows_T, row_scale_T, mask=valid_T)
        divided = rounded.to(tl.float32) * (1.0 / row_scale_T)[:, None]
        # 8 bytes a thread, as the loads have it: with 16 the row would cross shared memory first.
        at_H = tl.max_contiguous(columns_H, 8)
        quantized_at = quantized_ptr + rows_T[:, None] * H + at_H[None, :]
        tl.store(quantized_at, divided.to(quantized_ptr.dtype.element_ty), mask=mask)


@triton.jit
def rms_norm_kernel(
    x_ptr,
    residual_ptr,
    scale_ptr,
    delta_ptr,
    has_adapter_ptr,
    parts_ptr,
    weight_ptr,
    out_ptr,
    quantized_ptr,
    quantized_scale_ptr,
    num_rows,
    heads,
    x_outer,
    x_inner,
    residual_outer,
    residual_inner,
    out_outer,
    out_inner,
    eps,
    H: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_T: tl.constexpr,
    PARTS: tl.constexpr,
    STARTS_EARLY: tl.constexpr,
    FP8_MAX: tl.constexpr,
    SMALLEST_SCALE: tl.constexpr,
):
    """Semantics: residual[t] += x[t] * scale[t] + delta[t];
        out[t] = y[t] / sqrt(mean(y[t]^2) + eps) * weight, y = residual or x * scale + delta;
        quantized[t] = out[t] / s[t], s[t] = max |out[t]| / 448

    Args:
        x_ptr, residual_ptr, out_ptr: bf16 or fp32; row t is (t // heads, t % heads) with an outer and an
            inner stride, in elements. residual_ptr, scale_ptr, delta_ptr, out_ptr, quantized_ptr may be None.
        scale_ptr, quantized_scale_ptr: fp32 [num_rows].
        parts_ptr: fp32 [PARTS, num_rows, H], contiguous: x is their sum. None where x is read.
        delta_ptr: fp32 [num_rows, H], contiguous; read where has_adapter_ptr, int32 [num_rows], is not 0.
        quantized_ptr: e4m3 [num_rows, H], contiguous.
        H: row length; a constant, so that full rows are read without masks.
        BLOCK_T, BLOCK_H: rows per program and the power of two that holds a row.

    Source: Zhang and Sennrich, arXiv 1910.07467.
    """
    if STARTS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    rows_T = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    columns_H = tl.arange(0, BLOCK_H)
    valid_T = rows_T < num_rows
    mask = valid_T[:, None] & (columns_H < H)[None, :]
    weight_H = tl.load(weight_ptr + columns_H, mask=columns_H < H, other=0.0).to(tl.float32)
    if delta_ptr is not None:
        has_adapter_T = tl.load(has_adapter_ptr + rows_T, mask=valid_T, other=0) != 0
    if STARTS_EARLY:
        tl.extra.cuda.gdc_wait()

    outer_T, inner_T = rows_T // heads, rows_T % heads
    x_at = x_ptr + (outer_T * x_outer + inner_T * x_inner)[:, None] + columns_H[None, :]
    if parts_ptr is not None:
        part_at = parts_ptr + rows_T[:, None] * H + columns_H[None, :]
        y = tl.load(part_at, mask=mask, other=0.0)
        for part in tl.static_range(1, PARTS):
            y += tl.load(part_at + part * num_rows * H, mask=mask, other=0.0)
    else:
        y = tl.load(x_at, mask=mask, other=0.0).to(tl.float32)
    if delta_ptr is not None:
        delta_at = delta_ptr + rows_T[:, None] * H + columns_H[None, :]
        delta = tl.load(delta_at, mask=mask & has_adapter_T[:, None], other=0.0)
        # Without it the compiler saves registers: it loads the delta only once x is there.
        tl.debug_barrier()
    if scale_ptr is not None:
        y *= tl.load(scale_ptr + rows_T, mask=valid_T, other=0.0)[:, None]
    if residual_ptr is not None:
        row_at = residual_ptr + (outer_T * residual_outer + inner_T * residual_inner)[:, None]
        residual_at = row_at + columns_H[None, :]
        y += tl.load(residual_at, mask=mask, other=0.0).to(tl.float32)
    if delta_ptr is not None:
        y += delta  # last: a row of the base alone keeps the bits that it has without a delta
    if residual_ptr is not None:
        stored = y.to(residual_ptr.dtype.element_ty)
        tl.store(residual_at, stored, mask=mask)
        y = stored.to(tl.float32)  # what the next norm will find there

    out_at = None
    if out_ptr is not None:
        out_at = out_ptr + (outer_T * out_outer + inner_T * out_inner)[:, None] + columns_H[None, :]
    store_norm(
        y,
        weight_H,
        out_at,
        quantized_ptr,
        quantized_scale_ptr,
        rows_T,
        columns_H,
        valid_T,
        mask,
        eps,
        x_ptr.dtype.element_ty,
        H,
        FP8_MAX,
        SMALLEST_SCALE,
    )


def tile(hidden: int) -> tuple[int, int, int]:
    """(rows, row length rounded up, warps) of one program.

    A function of the row length alone: a row's sum is then the same bits at any number of rows.
    """
    block_h = triton.next_power_of_2(hidden)
    # 16 numbers a thread: two 16-byte loads in flight for each tensor.
    num_warps = min(max(block_h // 512, 1), MAX_WARPS)
    return 1, block_h, num_warps


def rms_norm_triton(
    x: Tensor,
    weight: Tensor,
    eps: float,
    out: Tensor | None,
    residual: Tensor | None,
    scale_T: Tensor | None,
    quantized: Tensor | None,
    quantized_scale_T: Tensor | None,
    delta: AdapterDelta | None,
    parts: Tensor | None,
) -> None:
    """Launches `rms_norm_kernel`; shapes have been checked."""
    hidden = x.shape[-1]
    num_rows = x.numel() // hidden
    if num_rows == 0:
        return
    block_t, block_h, num_warps = tile(hidden)
    heads = x.shape[1] if x.dim() == 3 else 1
    early = starts_early(x)
    options = {"launch_pdl": True} if early else {}
    with e4m3_output(quantized) as written:
        rms_norm_kernel[(triton.cdiv(num_rows, block_t),)](
            x,
            residual,
            scale_T,
            None if delta is None else delta.y_TN,
            None if delta is None else delta.has_adapter_T,
            parts,
            weight,
            out,
            written,
            quantized_scale_T,
            num_rows,
            heads,
            *_strides(x),
            *_strides(x if residual is None else residual),
            *_strides(x if out is None else out),
            eps,
            H=hidden,
            BLOCK_H=block_h,
            BLOCK_T=block_t,
            PARTS=0 if parts is None else len(parts),
            STARTS_EARLY=early,
            FP8_MAX=FP8_MAX,
            SMALLEST_SCALE=SMALLEST_SCALE,
            num_warps=num_warps,
            **options,
        )


def _strides(rows: Tensor) -> tuple[int, int]:
    """Elements from row to row: between the outer ones and between a token's heads."""
    if rows.stride(-1) != 1:
        raise ValueError(f"rms_norm: rows must be contiguous, their elements are {rows.stride(-1)} apart")
    if rows.dim() == 3:
        return rows.stride(0), rows.stride(1)
    if rows.dim() == 2:
        return rows.stride(0), 0
    raise ValueError(f"rms_norm: [T, H] or [T, heads, H], not {tuple(rows.shape)}")


def _compilation(
    hidden: int, quantizes: bool, keeps: bool, residual: bool, adapted: bool = False, num_parts: int = 0
) -> Compilation:
    block_t, block_h, num_warps = tile(hidden)
    pointers = {
        "x_ptr": "*bf16",
        "residual_ptr": "*bf16" if residual else None,
        "scale_ptr": "*fp32" if quantizes else None,
        "delta_ptr": "*fp32" if adapted else None,
        "has_adapter_ptr": "*i32" if adapted else None,
        "parts_ptr": "*fp32" if num_parts else None,
        "weight_ptr": "*bf16",
        "out_ptr": "*bf16" if keeps else None,
        "quantized_ptr": "*fp8e4nv" if quantizes else None,
        "quantized_scale_ptr": "*fp32" if quantizes else None,
    }
    integers = ("num_rows", "heads", "x_outer", "x_inner", "residual_outer", "residual_inner")
    signature = {name: kind for name, kind in pointers.items() if kind is not None}
    signature |= dict.fromkeys((*integers, "out_outer", "out_inner"), "i32") | {"eps": "fp32"}
    return Compilation(
        rms_norm_kernel,
        signature,
        {name: None for name, kind in pointers.items() if kind is None}
        | {
            "H": hidden,
            "BLOCK_H": block_h,
            "BLOCK_T": block_t,
            "PARTS": num_parts,
            "STARTS_EARLY": quantizes,
            "FP8_MAX": FP8_MAX,
            "SMALLEST_SCALE": SMALLEST_SCALE,
        },
        num_warps=num_warps,
        architectures=(90, 100) if quantizes else (80, 90, 100),
    )


COMPILATIONS = [
    _compilation(hidden, quantizes, keeps, residual)
    for hidden in (256, 4096)
    for quantizes, keeps, residual in (
        (False, True, False),
        (False, True, True),
        (True, True, True),
        (True, False, True),
        (True, True, False),
    )
] + [
    _compilation(128, False, True, False),
    _compilation(4096, True, True, True, adapted=True),
    _compilation(4096, True, True, True, adapted=True, num_parts=2),
]
