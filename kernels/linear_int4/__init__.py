"""Linear layer with 4-bit weights and a scale per 128 inputs; activations bf16 (W4A16) or FP8 (W4A8).

Semantics: out[t, n] = sum_k x[t, order[k]] (code[n, k] - zero[n, k / 128]) scale[n, k / 128] + bias[n]
With a weight packed for FP8, x is e4m3 with a scale for every row. Rows never meet, and sums have an order
that follows from the shapes: a row's result is the same bits whatever shares its batch, as long as the
number of rows is the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.activation import Activation
from kernels.backend import uses_triton
from kernels.linear_int4.reference import linear_int4_reference
from kernels.linear_int4.weight import Int4Weight

__all__ = ["Int4Weight", "linear_int4"]


def linear_int4(x: Tensor | Activation, weight: Int4Weight, out_TN: Tensor) -> Tensor:
    """Semantics: see the module. The result is the true value, not divided by a row's scale.

    Args:
        x: [T, K], bf16 on a GPU, any float type on a CPU; rows contiguous. An `Activation` where the weight
            is packed for FP8. A row with NaN or infinity leaves the others alone.
        weight: on the same device.
        out_TN: contiguous, of x's type on a GPU, overwritten.
    """
    activation = x if isinstance(x, Activation) else Activation(x)
    if weight.for_fp8 and (activation.quantized_TK is None or activation.scale_T is None):
        raise ValueError("linear_int4: this weight is packed for FP8 activations, and x has none")
    x_TK = activation.quantized_TK if weight.for_fp8 else activation.x_TK
    if x_TK is None:
        raise ValueError("linear_int4: this weight is packed for plain activations, and x has none")
    if x_TK.shape[1] != weight.in_features or out_TN.shape != (x_TK.shape[0], weight.out_features):
        shape = (weight.out_features, weight.in_features)
        raise ValueError(f"linear_int4: x {tuple(x_TK.shape)}, weight {shape}, out {tuple(out_TN.shape)}")
    if x_TK.stride(1) != 1 or not out_TN.is_contiguous():
        raise ValueError("linear_int4: rows of x and the whole of out must be contiguous")
    if uses_triton(x_TK):
        if x_TK.is_cuda and out_TN.dtype is not torch.bfloat16:
            raise ValueError(f"linear_int4: out is {out_TN.dtype}; on a GPU it is bf16")
        from kernels.linear_int4.kernel import linear_int4_triton

        return linear_int4_triton(activation, weight, out_TN)
    return linear_int4_reference(activation, weight, out_TN)
