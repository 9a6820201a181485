"""SiLU-and-multiply in torch: the meaning of the op, and the CPU engine's path."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def silu_mul_reference(gate_up_T2F: Tensor, out_TF: Tensor) -> Tensor:
    """Semantics: out[t, i] = silu(gate_up[t, i]) * gate_up[t, F + i]."""
    gate, up = gate_up_T2F.chunk(2, dim=-1)
    return torch.mul(F.silu(gate), up, out=out_TF)
