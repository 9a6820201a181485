"""RMSNorm in torch: the meaning of the op, and the CPU engine's path."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm_reference(
    x: Tensor, weight: Tensor, eps: float, out: Tensor, residual: Tensor | None = None
) -> Tensor:
    """Semantics: residual[t] += x[t]; out[t] = y[t] * rsqrt(mean(y[t]^2) + eps) * weight."""
    if residual is not None:
        x = residual.add_(x)
    wide = x.float()
    inverse = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    if out.dtype != torch.float32:
        return out.copy_(wide * inverse * weight)
    return torch.mul(wide, inverse, out=out).mul_(weight)
