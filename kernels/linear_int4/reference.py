"""Computes the 4-bit linear in plain torch: the definition of the op, on any device."""

from __future__ import annotations

from torch import Tensor

from kernels.activation import Activation
from kernels.linear_int4.weight import Int4Weight


def linear_int4_reference(activation: Activation, weight: Int4Weight, out_TN: Tensor) -> Tensor:
    """Semantics: out[t, n] = sum_k x[t, order[k]] W[n, k] + bias[n],
        W[n, k] = (code[n, k] - zero[n, k / 128]) scale[n, k / 128]

    x is what the weight is packed for. The weight is made whole for every product, in fp32: right, not fast.
    """
    if weight.for_fp8:
        assert activation.quantized_TK is not None
        assert activation.scale_T is not None
        wide = activation.quantized_TK.float() * activation.scale_T[:, None]
    else:
        assert activation.x_TK is not None
        wide = activation.x_TK.float()
    if weight.order_K is not None:
        wide = wide[:, weight.order_K]
    product = wide @ weight.dequantize().t()
    if weight.bias_N is not None:
        product += weight.bias_N
    return out_TN.copy_(product)
