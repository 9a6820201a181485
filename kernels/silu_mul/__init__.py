"""The gate of a SwiGLU feed-forward layer.

Semantics: out[t, i] = silu(gate_up[t, i]) * gate_up[t, F + i], silu(z) = z / (1 + exp(-z))
"""

from __future__ import annotations

from torch import Tensor

from kernels.silu_mul.reference import silu_mul_reference


def silu_mul(gate_up_T2F: Tensor, out_TF: Tensor) -> Tensor:
    """Semantics: see the module.

    Source: Shazeer, "GLU Variants Improve Transformer", arXiv 2002.05202.
    """
    num_tokens, width = gate_up_T2F.shape
    if out_TF.shape != (num_tokens, width // 2) or width % 2:
        raise ValueError(
            f"silu_mul: out {tuple(out_TF.shape)} does not fit gate_up {tuple(gate_up_T2F.shape)}"
        )
    return silu_mul_reference(gate_up_T2F, out_TF)
