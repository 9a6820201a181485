"""Defines the sum over ranks in torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.rms_norm.reference import rms_norm_reference


def sum_norm_reference(
    parts: Sequence[Tensor],
    scales: Sequence[Tensor] | None,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    out: Tensor | None,
    quantized: Tensor | None = None,
    quantized_scale_T: Tensor | None = None,
) -> None:
    """Semantics: residual[t] += sum_r parts[r][t] * scales[r][t], in the order of the ranks; then its norm as
    `rms_norm_reference` has it.
    """
    total = torch.zeros_like(residual, dtype=torch.float32)
    for rank, part in enumerate(parts):
        total += part.float() if scales is None else part.float() * scales[rank][:, None]
    residual.copy_(total.add_(residual))
    rms_norm_reference(residual, weight, eps, out, quantized=quantized, quantized_scale_T=quantized_scale_T)
