"""RoPE in torch: the meaning of the op, and the CPU engine's path."""

from __future__ import annotations

import torch
from torch import Tensor


def rope_reference(x_THD: Tensor, rotary_T2D: Tensor) -> Tensor:
    """Semantics: x[t,h,i] = x[t,h,i] * rotary[t,0,i] + x[t,h,(i + D/2) mod D] * rotary[t,1,i], in place."""
    cos_T1D, sin_T1D = rotary_T2D.to(x_THD.dtype).split(1, dim=1)
    swapped = torch.roll(x_THD, x_THD.shape[-1] // 2, -1)
    return x_THD.mul_(cos_T1D).addcmul_(swapped, sin_T1D)
