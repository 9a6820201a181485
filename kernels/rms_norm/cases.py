"""Inputs for the tests and benchmarks of RMSNorm."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    num_rows: int
    hidden: int
    with_residual: bool

    def inputs(self, dtype: torch.dtype = torch.float32, device: str = "cpu") -> dict[str, Tensor | None]:
        generator = torch.Generator().manual_seed(self.num_rows * 7919 + self.hidden)
        x = torch.randn(self.num_rows, self.hidden, generator=generator)
        weight = torch.randn(self.hidden, generator=generator)
        residual = torch.randn(self.num_rows, self.hidden, generator=generator)
        return {
            "x": x.to(device, dtype),
            "weight": weight.to(device, dtype),
            "residual": residual.to(device, dtype) if self.with_residual else None,
        }


CASES = [
    Case(rows, hidden, residual)
    for rows, hidden in ((1, 256), (32, 256), (3, 100), (128, 4096))
    for residual in (False, True)
]
