"""Inputs for the tests and benchmarks of RoPE."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    num_tokens: int
    num_heads: int
    head_dim: int

    def inputs(self, dtype: torch.dtype = torch.float32, device: str = "cpu") -> tuple[Tensor, Tensor]:
        """(x_THD, angles [T, D/2]): callers build the rotary planes from the angles."""
        generator = torch.Generator().manual_seed(self.num_tokens * 31 + self.head_dim)
        x = torch.randn(self.num_tokens, self.num_heads, self.head_dim, generator=generator)
        angles = torch.rand(self.num_tokens, self.head_dim // 2, generator=generator) * 6.28
        return x.to(device, dtype), angles.to(device)


def rotary_planes(angles: Tensor, scale: float = 1.0) -> Tensor:
    """[T, D/2] angles in radians -> the [T, 2, D] planes that `rope` reads, both multiplied by `scale`."""
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), dim=1)


CASES = [Case(1, 3, 16), Case(32, 12, 32), Case(7, 6, 64), Case(64, 40, 128)]
