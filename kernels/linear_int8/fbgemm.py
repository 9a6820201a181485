"""Computes the int8 linear with FBGEMM and one constant activation scale: the CPU engine's path.

FBGEMM offers a scale per tensor only, which would let one row move another's result. So each row is divided
by its own largest magnitude first and multiplied back after: the constant scale 1/63 then is every row's own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.linear_int8.reference import ACTIVATION_RANGE, row_magnitudes
from kernels.linear_int8.weight import Int8Weight

ZERO_POINT = 64
"""Activations are stored unsigned, 1..127: two products with |w| <= 127 sum to 32 258 and fit the int16
that AVX2's multiply-add saturates at. With all 8 bits the sums saturate (README)."""


def linear_int8_fbgemm(x_TK: Tensor, weight: Int8Weight, out_TN: Tensor) -> Tensor:
    """Semantics: out[t, n] = (sum_k q[t, k] w[n, k]) s[n] m[t] / 63 + bias[n]."""
    magnitude_T1 = row_magnitudes(x_TK)
    product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
        x_TK / magnitude_T1, 1.0 / ACTIVATION_RANGE, ZERO_POINT, weight.packed
    )
    if weight.bias_N is not None:
        return torch.addcmul(weight.bias_N, product, magnitude_T1, out=out_TN)
    return torch.mul(product, magnitude_T1, out=out_TN)
