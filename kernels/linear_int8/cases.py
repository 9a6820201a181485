"""Builds inputs for the tests and benchmarks of the int8 linear."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    num_rows: int
    in_features: int
    out_features: int
    with_bias: bool = False

    def inputs(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """(x_TK with rows of very different size, weight_NK, bias_N)."""
        generator = torch.Generator().manual_seed(self.num_rows + self.in_features)
        x = torch.randn(self.num_rows, self.in_features, generator=generator)
        x *= 10.0 ** torch.randint(-4, 4, (self.num_rows, 1), generator=generator)
        weight = torch.randn(self.out_features, self.in_features, generator=generator) * 0.05
        bias = torch.randn(self.out_features, generator=generator) if self.with_bias else None
        return x, weight, bias


CASES = [
    Case(1, 64, 48),
    Case(5, 100, 33, with_bias=True),
    Case(32, 256, 1408),
    Case(40, 704, 256, with_bias=True),
    Case(16, 2048, 64),
]
