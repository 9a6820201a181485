"""The 4-bit linear in plain torch: the meaning of the op, on any device."""

from __future__ import annotations

from torch import Tensor

from kernels.linear_int4.weight import Int4Weight


def linear_int4_reference(x_TK: Tensor, weight: Int4Weight, out_TN: Tensor) -> Tensor:
    """Semantics: out[t, n] = sum_k x[t, order[k]] (code[n, k] - zero[n, k / 128]) scale[n, k / 128] + bias[n].

    The weight is made whole for every product, in fp32: right, not fast.
    """
    wide = x_TK.float()
    if weight.order_K is not None:
        wide = wide[:, weight.order_K]
    product = wide @ weight.dequantize().t()
    if weight.bias_N is not None:
        product += weight.bias_N
    return out_TN.copy_(product)
