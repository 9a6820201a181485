"""Root-mean-square normalisation, with the residual addition that precedes it in a decoder.

Semantics: residual[t] += x[t] if given; out[t] = y[t] / sqrt(mean(y[t]^2) + eps) * weight, y = residual or x
"""

from __future__ import annotations

from torch import Tensor

from kernels.rms_norm.reference import rms_norm_reference


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor, residual: Tensor | None = None) -> Tensor:
    """Semantics: see the module. Arithmetic in fp32 whatever the storage type.

    Args:
        x: `[..., H]`, normalised over its last dimension; may be strided.
        weight: `[H]`.
        out: like `x`; may be `x` itself.
        residual: like `x`; updated in place, and what is normalised, when given.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv 1910.07467.
    """
    if out.shape != x.shape or weight.shape != x.shape[-1:]:
        raise ValueError(
            f"rms_norm: x {tuple(x.shape)}, weight {tuple(weight.shape)}, out {tuple(out.shape)}"
        )
    if residual is not None and residual.shape != x.shape:
        raise ValueError(f"rms_norm: residual {tuple(residual.shape)} is not like x {tuple(x.shape)}")
    return rms_norm_reference(x, weight, eps, out, residual)
