"""The gate of a SwiGLU feed-forward layer, with the quantisation of the rows that the down projection reads.

Semantics: g, u = y[t, :F], y[t, F:], y[t] = gate_up[t] * scale[t] + delta[t]; out[t] = silu(g) * u;
    quantized[t] = out[t] / s[t], s[t] = max |out[t]| / 448; silu(z) = z / (1 + exp(-z))
"""

from __future__ import annotations

from torch import Tensor

from kernels.activation import AdapterDelta
from kernels.backend import uses_triton
from kernels.silu_mul.reference import silu_mul_reference


def silu_mul(
    gate_up_T2F: Tensor,
    out_TF: Tensor | None,
    *,
    scale_T: Tensor | None = None,
    quantized: Tensor | None = None,
    quantized_scale_T: Tensor | None = None,
    delta: AdapterDelta | None = None,
) -> Tensor | None:
    """Semantics: see the module. `out_TF` is returned.

    Args:
        gate_up_T2F: gate, then up; rows may be strided.
        out_TF: None where only `quantized` is read.
        scale_T: fp32, what the rows of `gate_up_T2F` were divided by.
        quantized: e4m3 `[T, F]`, contiguous.
        quantized_scale_T: fp32 `[T]`, overwritten with what the rows of `quantized` were divided by.
        delta: `[T, 2F]`, what adapters add to the rows of `gate_up_T2F`.

    Source: Shazeer, "GLU Variants Improve Transformer", arXiv 2002.05202.
    """
    num_tokens, width = gate_up_T2F.shape
    expected = (num_tokens, width // 2)
    for name, rows in (("out", out_TF), ("quantized", quantized)):
        if rows is not None and (rows.shape != expected or width % 2 or rows.stride(-1) != 1):
            raise ValueError(
                f"silu_mul: {name} {tuple(rows.shape)} does not fit gate_up {tuple(gate_up_T2F.shape)}"
            )
    if out_TF is None and quantized is None:
        raise ValueError("silu_mul: neither out nor quantized is asked for")
    if (quantized is None) != (quantized_scale_T is None):
        raise ValueError("silu_mul: quantized and quantized_scale_T go together")
    if quantized is not None and not quantized.is_contiguous():
        raise ValueError("silu_mul: quantized is not contiguous")
    for name, scale in (("scale_T", scale_T), ("quantized_scale_T", quantized_scale_T)):
        if scale is not None and scale.shape != (num_tokens,):
            raise ValueError(f"silu_mul: {name} {tuple(scale.shape)} for {num_tokens} rows")
    if delta is not None:
        delta.check("silu_mul", gate_up_T2F)
    if uses_triton(gate_up_T2F):
        from kernels.silu_mul.kernel import silu_mul_triton

        silu_mul_triton(gate_up_T2F, out_TF, scale_T, quantized, quantized_scale_T, delta)
        return out_TF
    return silu_mul_reference(
        gate_up_T2F,
        out_TF,
        scale_T=scale_T,
        quantized=quantized,
        quantized_scale_T=quantized_scale_T,
        delta=delta,
    )
