"""Inputs for the tests and benchmarks of the KV write."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    num_tokens: int
    num_heads: int
    head_dim: int
    block_size: int
    num_blocks: int

    def inputs(self, dtype: torch.dtype = torch.float32, device: str = "cpu") -> tuple[Tensor, Tensor]:
        """(kv_T2HD, slot_mapping_T): distinct slots outside of block 0."""
        generator = torch.Generator().manual_seed(self.num_tokens + self.head_dim)
        kv = torch.randn(self.num_tokens, 2, self.num_heads, self.head_dim, generator=generator)
        free = torch.randperm((self.num_blocks - 1) * self.block_size, generator=generator) + self.block_size
        return kv.to(device, dtype), free[: self.num_tokens].to(device)


CASES = [Case(1, 1, 16, 16, 4), Case(32, 4, 32, 16, 64), Case(50, 8, 128, 16, 16), Case(9, 3, 24, 8, 5)]
