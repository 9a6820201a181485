"""Computes the FP8 linear in plain torch: the definition of the op, and how a base in FP8 runs on a CPU
(slowly).
"""

from __future__ import annotations

from torch import Tensor

from kernels.linear_fp8.weight import Fp8Weight


def linear_fp8_reference(
    quantized_TK: Tensor, row_scale_T: Tensor | None, weight: Fp8Weight, out_TN: Tensor
) -> Tensor:
    """Semantics: out[t, n] = (sum_k q[t, k] w[n, k]) * scale[n] (* row_scale[t]) (+ bias[n]).

    The product of two e4m3 numbers is exact in fp32; sums are rounded in fp32.
    """
    product = quantized_TK.float() @ weight.values_NK.float().t()
    product *= weight.scale
    if row_scale_T is not None:
        product *= row_scale_T[:, None]
    if weight.bias_N is not None:
        product += weight.bias_N
    return out_TN.copy_(product)
