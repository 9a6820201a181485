"""Computes SiLU-and-multiply on a GPU, with the quantisation of the rows that the down projection reads."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.activation import FP8_MAX, SMALLEST_SCALE, AdapterDelta
from kernels.backend import e4m3_output
from kernels.compilation import Compilation
from kernels.overlap import starts_early

MAX_WARPS = 32
MAX_HELD = tl.constexpr(16384)
"""Columns whose loads may all be in flight: with twice as many and a delta, registers spill."""
PLAIN_BLOCK = 2048
"""Columns of a program that quantises nothing: no row is waited for, so rows are cut."""


@triton.jit
def silu_mul_kernel(
    gate_up_ptr,
    scale_ptr,
    delta_ptr,
    has_adapter_ptr,
    out_ptr,
    quantized_ptr,
    quantized_scale_ptr,
    gate_up_stride,
    out_stride,
    F: tl.constexpr,
    BLOCK_F: tl.constexpr,
    STARTS_EARLY: tl.constexpr,
    FP8_MAX: tl.constexpr,
    SMALLEST_SCALE: tl.constexpr,
):
    """Semantics: g, u = y[t, :F], y[t, F:], y[t] = gate_up[t] * scale[t] + delta[t];
        out[t] = g / (1 + exp(-g)) * u; quantized[t] = out[t] / s[t], s[t] = max |out[t]| / 448

    Args:
        gate_up_ptr, out_ptr: bf16 or fp32, rows of 2F and F numbers. scale_ptr, delta_ptr, out_ptr,
            quantized_ptr may be None.
        scale_ptr, quantized_scale_ptr: fp32 [T].
        delta_ptr: fp32 [T, 2F], contiguous; read where has_adapter_ptr, int32 [T], is not 0.
        quantized_ptr: e4m3 [T, F], contiguous.
        BLOCK_F: columns of one program; where rows are quantised it holds a row.

    Grid: (T, F / BLOCK_F). Source: Shazeer, arXiv 2002.05202.
    """
    if STARTS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    columns_F = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    mask = columns_F < F
    if delta_ptr is not None:
        has_adapter = tl.load(has_adapter_ptr + row) != 0
    if STARTS_EARLY:
        tl.extra.cuda.gdc_wait()

    gate_at = gate_up_ptr + row * gate_up_stride + columns_F
    gate = tl.load(gate_at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_at + F, mask=mask, other=0.0).to(tl.float32)
    if delta_ptr is not None:
        delta_at = delta_ptr + row * (2 * F) + columns_F
        gate_delta = tl.load(delta_at, mask=mask & has_adapter, other=0.0)
        if BLOCK_F <= MAX_HELD:
            # Without it the compiler saves registers: it loads a few columns at a time, and waits each time.
            # After the last load instead it makes registers spill.
            tl.debug_barrier()
        up_delta = tl.load(delta_at + F, mask=mask & has_adapter, other=0.0)
    if scale_ptr is not None:
        scale = tl.load(scale_ptr + row)
        gate *= scale
        up *= scale
    if delta_ptr is not None:
        gate += gate_delta
        up += up_delta
    out_type = gate_up_ptr.dtype.element_ty
    rounded = (gate / (1.0 + tl.exp(-gate)) * up).to(out_type)
    if out_ptr is not None:
        tl.store(out_ptr + row * out_stride + columns_F, rounded, mask=mask)
    if quantized_ptr is not None:
        wide = rounded.to(tl.float32)
        row_scale = tl.maximum(tl.max(tl.abs(wide), 0) * (1.0 / FP8_MAX), SMALLEST_SCALE)
        tl.store(quantized_scale_ptr + row, row_scale)
        divided = wide * (1.0 / row_scale)
        # 8 bytes a thread, as the loads have it: with 16 the row would cross shared memory first.
        quantized_at = quantized_ptr + row * F + tl.max_contiguous(columns_F, 8)
        tl.store(quantized_at, divided.to(quantized_ptr.dtype.element_ty), mask=mask)


def tile(inner: int, quantizes: bool) -> tuple[int, int]:
    """(columns, warps) of one program."""
    whole = triton.next_power_of_2(inner)
    if not quantizes:
        return min(whole, PLAIN_BLOCK), 4
    # 16 columns a thread: four 16-byte loads in flight.
    return whole, min(max(whole // 512, 1), MAX_WARPS)


def silu_mul_triton(
    gate_up_T2F: Tensor,
    out_TF: Tensor | None,
    scale_T: Tensor | None,
    quantized_TF: Tensor | None,
    quantized_scale_T: Tensor | None,
    delta: AdapterDelta | None,
) -> None:
    """Launches `silu_mul_kernel`; shapes have been checked."""
    num_rows, inner = gate_up_T2F.shape[0], gate_up_T2F.shape[1] // 2
    if num_rows == 0 or inner == 0:
        return
    block_f, num_warps = tile(inner, quantized_TF is not None)
    early = starts_early(gate_up_T2F)
    options = {"launch_pdl": True} if early else {}
    with e4m3_output(quantized_TF) as written:
        silu_mul_kernel[(num_rows, triton.cdiv(inner, block_f))](
            gate_up_T2F,
            scale_T,
            None if delta is None else delta.y_TN,
            None if delta is None else delta.has_adapter_T,
            out_TF,
            written,
            quantized_scale_T,
            gate_up_T2F.stride(0),
            inner if out_TF is None else out_TF.stride(0),
            F=inner,
            BLOCK_F=block_f,
            STARTS_EARLY=early,
            FP8_MAX=FP8_MAX,
            SMALLEST_SCALE=SMALLEST_SCALE,
            num_warps=num_warps,
            **options,
        )


def _compilation(inner: int, quantizes: bool, keeps: bool, adapted: bool = False) -> Compilation:
    block_f, num_warps = tile(inner, quantizes)
    pointers = {
        "gate_up_ptr": "*bf16",
        "scale_ptr": "*fp32" if quantizes else None,
        "delta_ptr": "*fp32" if adapted else None,
        "has_adapter_ptr": "*i32" if adapted else None,
        "out_ptr": "*bf16" if keeps else None,
        "quantized_ptr": "*fp8e4nv" if quantizes else None,
        "quantized_scale_ptr": "*fp32" if quantizes else None,
    }
    signature = {name: kind for name, kind in pointers.items() if kind is not None}
    return Compilation(
        silu_mul_kernel,
        signature | {"gate_up_stride": "i32", "out_stride": "i32"},
        {name: None for name, kind in pointers.items() if kind is None}
        | {
            "F": inner,
            "BLOCK_F": block_f,
            "STARTS_EARLY": quantizes,
            "FP8_MAX": FP8_MAX,
            "SMALLEST_SCALE": SMALLEST_SCALE,
        },
        num_warps=num_warps,
        architectures=(90, 100) if quantizes else (80, 90, 100),
    )


COMPILATIONS = [
    _compilation(inner, quantizes, keeps)
    for inner in (640, 14336)
    for quantizes, keeps in ((False, True), (True, True), (True, False))
] + [_compilation(14336, True, True, adapted=True)]
