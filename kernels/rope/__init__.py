"""Rotary position embedding, applied in place to the heads of q and k.

Semantics: x[t, h, i] = x[t, h, i] * rotary[t, 0, i] + x[t, h, (i + D/2) mod D] * rotary[t, 1, i]
"""

from __future__ import annotations

from torch import Tensor

from kernels.rope.reference import rope_reference


def rope(x_THD: Tensor, rotary_T2D: Tensor) -> Tensor:
    """Semantics: see the module. Pairs are (i, i + D/2), as in Hugging Face checkpoints.

    Args:
        x_THD: heads of q and k, rotated in place; last dimension contiguous, rows may be strided.
        rotary_T2D: fp32; plane 0 the cosines twice over, plane 1 the sines, negated in the first half.

    Source: Su et al., "RoFormer", arXiv 2104.09864.
    """
    num_tokens, _, head_dim = x_THD.shape
    if rotary_T2D.shape != (num_tokens, 2, head_dim):
        raise ValueError(f"rope: rotary {tuple(rotary_T2D.shape)} does not fit x {tuple(x_THD.shape)}")
    return rope_reference(x_THD, rotary_T2D)
