"""Computes RMSNorm in torch: the definition of the op, and the CPU engine's path."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.activation import AdapterDelta, quantize_rows, true_rows


def rms_norm_reference(
    x: Tensor,
    weight: Tensor,
    eps: float,
    out: Tensor | None,
    residual: Tensor | None = None,
    *,
    scale_T: Tensor | None = None,
    quantized: Tensor | None = None,
    quantized_scale_T: Tensor | None = None,
    delta: AdapterDelta | None = None,
    parts: Tensor | None = None,
) -> Tensor | None:
    """Semantics: residual[t] += x[t] * scale[t] + delta[t];
    out[t] = y[t] * rsqrt(mean(y[t]^2) + eps) * weight;
    quantized[t] = out[t] / s[t], where s[t] = max |out[t]| / 448.
    """
    if scale_T is not None or delta is not None or parts is not None:
        x = true_rows(x, scale_T, delta, parts)
        if residual is not None:
            residual.copy_(x.add_(residual))
            x = residual
    elif residual is not None:
        x = residual.add_(x)
    wide = x.float()
    inverse = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    if out is None:
        assert quantized is not None
        out_or_scratch = torch.empty_like(wide, dtype=weight.dtype)
    else:
        out_or_scratch = out
    if out_or_scratch.dtype != torch.float32:
        out_or_scratch.copy_(wide * inverse * weight)
    else:
        torch.mul(wide, inverse, out=out_or_scratch).mul_(weight)
    if quantized is not None and quantized_scale_T is not None:
        quantize_rows(out_or_scratch, quantized, quantized_scale_T)
    return out
