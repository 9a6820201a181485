"""Linear layer with FP8 weights and FP8 activations, one activation scale per row: W8A8 on a GPU.

Semantics: x[t, k] = q[t, k] * s[t]; W[n, k] = w[n, k] * scale[n];
    y[t, n] = (sum_k q[t, k] w[n, k]) * scale[n], and the true value is y[t, n] * s[t] (+ bias[n])
A weight with one scale for the whole tensor gives y, left divided by s. A weight with a scale per channel, or
with a bias, gives the true value.
"""

from __future__ import annotations

from enum import Enum

from torch import Tensor

from kernels.activation import Activation, Parts, Projection, check_parts
from kernels.backend import uses_triton
from kernels.linear_fp8.reference import linear_fp8_reference
from kernels.linear_fp8.weight import E4M3, Fp8Weight

__all__ = ["Fp8Weight", "Product", "linear_fp8", "num_parts", "product"]


class Product(Enum):
    """Who computes it."""

    REFERENCE = "torch, on a CPU"
    STREAM = "our kernel for few rows, on Hopper"
    TRITON = "our kernel for any shape"
    CUBLAS = "cuBLASLt, one scale"
    ROWWISE = "CUTLASS, scales for rows and channels"


def product(num_rows: int, weight: Fp8Weight) -> Product:
    """What is fastest for a shape: a function of the shape alone (README.md has the measurements)."""
    from kernels.linear_fp8.cublas import is_aligned

    device = weight.values_NK.device
    if device.type != "cuda":
        return Product.TRITON if uses_triton(weight.values_NK) else Product.REFERENCE
    if num_rows <= _stream_rows(weight):
        from kernels.linear_fp8.stream import streams

        if streams(num_rows, weight.out_features, weight.in_features, device):
            return Product.STREAM
    if not is_aligned(weight):
        return Product.TRITON
    return Product.ROWWISE if weight.per_channel else Product.CUBLAS


def _stream_rows(weight: Fp8Weight) -> int:
    """Up to how many rows our kernel beats the library's.

    A layer of four products with their norms, M = 1 / 16 / 32 / 64 / 128: 65 / 70 / 74 / 81 / 105 us, against
    78 / 81 / 81 / 82 / 89 with cuBLASLt. Against row-wise scales it wins further up where K is long.
    """
    return 128 if weight.per_channel and weight.in_features >= weight.out_features else 64


def num_parts(num_rows: int, weight: Fp8Weight) -> int:
    """In how many parts the product can be left; 1 where it is computed whole."""
    if product(num_rows, weight) is not Product.STREAM:
        return 1
    from kernels.linear_fp8.stream import stream_parts

    return stream_parts(num_rows, weight)


def linear_fp8(
    activation: Activation,
    weight: Fp8Weight,
    out_TN: Tensor,
    *,
    lets_in_late: bool = False,
    parts: Parts | None = None,
) -> Projection:
    """Semantics: see the module; parts_0 + parts_1 + ... = y s (+ bias).

    Args:
        activation: quantised; a row with NaN or infinity gives a row without a finite number, and leaves the
            others alone.
        weight: on the activation's device.
        out_TN: contiguous, overwritten.
        lets_in_late: the next kernel may begin once the activation is there, and need not wait for more; only
            where `product` is `STREAM`.
        parts: `num_parts` of them are overwritten in place of `out_TN`: blocks of the same channels do not
            wait for one another then.

    Returns:
        `out_TN`, with the activation's scales where it is left divided by them; or the parts, which are not.
    """
    quantized_TK, scale_T = activation.quantized_TK, activation.scale_T
    if quantized_TK is None or scale_T is None:
        raise ValueError("linear_fp8 needs a quantised activation")
    num_rows = len(quantized_TK)
    expected = (num_rows, weight.out_features)
    if quantized_TK.shape[1] != weight.in_features or out_TN.shape != expected:
        shape = tuple(weight.values_NK.shape)
        raise ValueError(
            f"linear_fp8: x {tuple(quantized_TK.shape)}, weight {shape}, out {tuple(out_TN.shape)}"
        )
    if quantized_TK.dtype != E4M3 or not quantized_TK.is_contiguous() or not out_TN.is_contiguous():
        raise ValueError("linear_fp8: x must be e4m3, x and out contiguous")
    row_scale_T = scale_T if weight.per_channel or parts is not None else None
    by = product(num_rows, weight)
    if lets_in_late and by is not Product.STREAM:
        raise ValueError(
            f"linear_fp8: {num_rows} rows are computed by {by.value}, which lets no kernel in late"
        )
    if parts is not None:
        check_parts("linear_fp8", parts.y_PTN, out_TN)
        if len(parts.y_PTN) != (count := num_parts(num_rows, weight)):
            raise ValueError(f"linear_fp8: {len(parts.y_PTN)} parts, not {count}")
    if num_rows:
        _run(by, quantized_TK, row_scale_T, weight, out_TN, parts, lets_in_late)
    return Projection(out_TN, scale_T if row_scale_T is None else None, parts=parts)


def _run(
    by: Product,
    quantized_TK: Tensor,
    row_scale_T: Tensor | None,
    weight: Fp8Weight,
    out_TN: Tensor,
    parts: Parts | None,
    lets_in_late: bool,
) -> None:
    if by is Product.REFERENCE:
        linear_fp8_reference(quantized_TK, row_scale_T, weight, out_TN)
    elif by is Product.STREAM:
        from kernels.linear_fp8.stream import linear_fp8_stream

        written, copies = (out_TN, ()) if parts is None else (parts.y_PTN, parts.copies)
        linear_fp8_stream(
            quantized_TK, row_scale_T, weight, written, copies=copies, lets_in_late=lets_in_late
        )
    elif by is Product.TRITON:
        from kernels.linear_fp8.kernel import linear_fp8_triton

        linear_fp8_triton(quantized_TK, row_scale_T, weight, out_TN)
    else:
        from kernels.linear_fp8.cublas import linear_fp8_per_channel, linear_fp8_per_tensor

        if row_scale_T is None:
            linear_fp8_per_tensor(quantized_TK, weight, out_TN)
        else:
            linear_fp8_per_channel(quantized_TK, row_scale_T, weight, out_TN)
