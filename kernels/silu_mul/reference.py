"""Computes SiLU-and-multiply in torch: the definition of the op, and the CPU engine's path."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.activation import AdapterDelta, quantize_rows, true_rows


def silu_mul_reference(
    gate_up_T2F: Tensor,
    out_TF: Tensor | None,
    *,
    scale_T: Tensor | None = None,
    quantized: Tensor | None = None,
    quantized_scale_T: Tensor | None = None,
    delta: AdapterDelta | None = None,
) -> Tensor | None:
    """Semantics: out[t, i] = silu(y[t, i]) * y[t, F + i], where y[t] = gate_up[t] * scale[t] + delta[t];
    quantized[t] = out[t] / s[t], where s[t] = max |out[t]| / 448.
    """
    kind = gate_up_T2F.dtype
    if scale_T is not None or delta is not None:
        gate_up_T2F = true_rows(gate_up_T2F, scale_T, delta)
    gate, up = gate_up_T2F.chunk(2, dim=-1)
    if out_TF is None or gate.dtype != out_TF.dtype:
        inner = (F.silu(gate) * up).to(kind)
        if out_TF is not None:
            out_TF.copy_(inner)
    else:
        inner = torch.mul(F.silu(gate), up, out=out_TF)
    if quantized is not None and quantized_scale_T is not None:
        quantize_rows(inner, quantized, quantized_scale_T)
    return out_TF
