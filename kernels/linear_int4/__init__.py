"""Linear layer with 4-bit weights, a scale per 128 inputs, and unquantised activations: W4A16.

Semantics: out[t, n] = sum_k x[t, order[k]] (code[n, k] - zero[n, k / 128]) scale[n, k / 128] + bias[n]
Rows never meet, and sums have an order that follows from the shapes: a row's result is the same bits
whatever shares its batch, as long as the number of rows is the same.
"""

from __future__ import annotations

from torch import Tensor

from kernels.backend import uses_triton
from kernels.linear_int4.reference import linear_int4_reference
from kernels.linear_int4.weight import Int4Weight

__all__ = ["Int4Weight", "linear_int4"]


def linear_int4(x_TK: Tensor, weight: Int4Weight, out_TN: Tensor) -> Tensor:
    """Semantics: see the module.

    Args:
        x_TK: bf16 on a GPU, any float type on a CPU; rows contiguous. A row with NaN or infinity leaves the
            others alone.
        weight: on the same device.
        out_TN: of x's type, contiguous, overwritten.
    """
    if x_TK.shape[1] != weight.in_features or out_TN.shape != (x_TK.shape[0], weight.out_features):
        shape = (weight.out_features, weight.in_features)
        raise ValueError(f"linear_int4: x {tuple(x_TK.shape)}, weight {shape}, out {tuple(out_TN.shape)}")
    if x_TK.stride(1) != 1 or not out_TN.is_contiguous():
        raise ValueError("linear_int4: rows of x and the whole of out must be contiguous")
    if uses_triton(x_TK):
        if x_TK.is_cuda and x_TK.dtype is not out_TN.dtype:
            raise ValueError(f"linear_int4: x is {x_TK.dtype}, out {out_TN.dtype}")
        from kernels.linear_int4.launch import linear_int4_triton

        return linear_int4_triton(x_TK, weight, out_TN)
    return linear_int4_reference(x_TK, weight, out_TN)
