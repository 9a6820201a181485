"""Inputs for the tests and benchmarks of SiLU-and-multiply."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    num_rows: int
    inner: int

    def inputs(self, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
        generator = torch.Generator().manual_seed(self.num_rows + self.inner)
        return torch.randn(self.num_rows, 2 * self.inner, generator=generator).to(device, dtype)


CASES = [Case(1, 704), Case(32, 704), Case(5, 50), Case(64, 14336)]
