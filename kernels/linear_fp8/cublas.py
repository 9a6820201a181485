"""Computes the FP8 product in cuBLASLt and CUTLASS, through torch, for shapes they accept."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from kernels.linear_fp8.weight import Fp8Weight

ALIGNMENT = 16
"""Numbers: of both sides of the weight."""
FAST_ACCUMULATION = True
"""Sums stay in the tensor cores' own accumulators, as they do in our kernels, and are not promoted to fp32 on
the way: that costs 2 to 19 % of a prefill and moves results far less than FP8's own rounding."""


def is_aligned(weight: Fp8Weight) -> bool:
    return weight.out_features % ALIGNMENT == 0 and weight.in_features % ALIGNMENT == 0


@cache
def _one(device: torch.device) -> Tensor:
    return torch.ones(1, dtype=torch.float32, device=device)


def linear_fp8_per_tensor(quantized_TK: Tensor, weight: Fp8Weight, out_TN: Tensor) -> None:
    """Semantics: out[t, n] = (sum_k q[t, k] w[n, k]) * scale; out is left divided by the row scale."""
    torch._scaled_mm(
        quantized_TK,
        weight.values_NK.t(),
        scale_a=_one(quantized_TK.device),
        scale_b=weight.scale,
        out_dtype=out_TN.dtype,
        use_fast_accum=FAST_ACCUMULATION,
        out=out_TN,
    )


def linear_fp8_per_channel(
    quantized_TK: Tensor, row_scale_T: Tensor, weight: Fp8Weight, out_TN: Tensor
) -> None:
    """Semantics: out[t, n] = (sum_k q[t, k] w[n, k]) * scale[n] * row_scale[t] + bias[n]."""
    bias_N = weight.bias_N
    torch._scaled_mm(
        quantized_TK,
        weight.values_NK.t(),
        scale_a=row_scale_T[:, None],
        scale_b=weight.scale[None, :],
        bias=None if bias_N is None else bias_N.to(out_TN.dtype),
        out_dtype=out_TN.dtype,
        use_fast_accum=FAST_ACCUMULATION,
        out=out_TN,
    )
