"""Root-mean-square normalisation, with the residual addition before it and the quantisation after it.

Semantics: residual[t] += x[t] * scale[t] + delta[t]; out[t] = y[t] / sqrt(mean(y[t]^2) + eps) * weight;
    quantized[t] = out[t] / s[t], s[t] = max |out[t]| / 448; y = residual, or x * scale + delta without one
"""

from __future__ import annotations

from torch import Tensor

from kernels.activation import AdapterDelta, check_parts
from kernels.backend import uses_triton
from kernels.rms_norm.reference import rms_norm_reference


def rms_norm(
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
    """Semantics: see the module. Arithmetic in fp32 whatever the storage type; `out` is returned.

    Args:
        x: `[T, H]` or `[T, heads, H]`, normalised over its last dimension; rows may be strided.
        weight: `[H]`.
        out: like `x`; may be `x` itself. None where only `quantized` is read.
        residual: like `x`; updated in place, and what is normalised, when given.
        scale_T: fp32 `[T]`, what the rows of `x` were divided by.
        quantized: e4m3 `[T, H]`, contiguous.
        quantized_scale_T: fp32 `[T]`, overwritten with what the rows of `quantized` were divided by.
        delta: `[T, H]`, what adapters add to the rows of `x`; not for `[T, heads, H]`.
        parts: fp32 `[P, T, H]`, contiguous, whose sum is read in place of `x`.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv 1910.07467.
    """
    _check(x, weight, out, residual, scale_T, quantized, quantized_scale_T, delta)
    if parts is not None:
        check_parts("rms_norm", parts, x)
    if uses_triton(x):
        from kernels.rms_norm.kernel import rms_norm_triton

        rms_norm_triton(x, weight, eps, out, residual, scale_T, quantized, quantized_scale_T, delta, parts)
        return out
    return rms_norm_reference(
        x,
        weight,
        eps,
        out,
        residual,
        scale_T=scale_T,
        quantized=quantized,
        quantized_scale_T=quantized_scale_T,
        delta=delta,
        parts=parts,
    )


def _check(
    x: Tensor,
    weight: Tensor,
    out: Tensor | None,
    residual: Tensor | None,
    scale_T: Tensor | None,
    quantized: Tensor | None,
    quantized_scale_T: Tensor | None,
    delta: AdapterDelta | None,
) -> None:
    if weight.shape != x.shape[-1:] or (out is not None and out.shape != x.shape):
        shape = None if out is None else tuple(out.shape)
        raise ValueError(f"rms_norm: x {tuple(x.shape)}, weight {tuple(weight.shape)}, out {shape}")
    if residual is not None and residual.shape != x.shape:
        raise ValueError(f"rms_norm: residual {tuple(residual.shape)} is not like x {tuple(x.shape)}")
    if out is None and quantized is None:
        raise ValueError("rms_norm: neither out nor quantized is asked for")
    if (quantized is None) != (quantized_scale_T is None):
        raise ValueError("rms_norm: quantized and quantized_scale_T go together")
    if quantized is not None and (quantized.shape != x.shape or not quantized.is_contiguous()):
        raise ValueError(f"rms_norm: quantized {tuple(quantized.shape)} is not like x {tuple(x.shape)}")
    for name, scale in (("scale_T", scale_T), ("quantized_scale_T", quantized_scale_T)):
        if scale is not None and (x.dim() != 2 or scale.shape != x.shape[:1]):
            raise ValueError(f"rms_norm: {name} {tuple(scale.shape)} for rows of x {tuple(x.shape)}")
    if delta is not None:
        delta.check("rms_norm", x)
