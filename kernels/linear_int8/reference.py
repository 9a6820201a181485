"""Computes the int8 linear in plain torch: the definition of the op, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.linear_int8.weight import Int8Weight

ACTIVATION_RANGE = 63


def row_magnitudes(x_TK: Tensor) -> Tensor:
    """m[t] = max_k |x[t, k]|, at least the smallest normal number. Shape [T, 1]."""
    return x_TK.abs().amax(-1, keepdim=True).clamp_min_(torch.finfo(torch.float32).tiny)


def linear_int8_reference(x_TK: Tensor, weight: Int8Weight, out_TN: Tensor) -> Tensor:
    """Semantics: out[t, n] = (sum_k q[t, k] w[n, k]) s[n] m[t] / 63 + bias[n].

    Sums are in double, where they are exact.
    """
    if weight.values_NK is None:
        raise ValueError("the reference needs an unpacked weight: Int8Weight.quantize(..., pack=False)")
    magnitude_T1 = row_magnitudes(x_TK)
    quantized = torch.round(x_TK / magnitude_T1 * ACTIVATION_RANGE)
    product = quantized.double() @ weight.values_NK.double().t()
    scaled = product.float() * (weight.scale_N * (1.0 / ACTIVATION_RANGE)) * magnitude_T1
    return out_TN.copy_(scaled if weight.bias_N is None else scaled + weight.bias_N)
