"""Computes sums of tensors over the ranks of a tensor-parallel group, and gathers them on rank 0."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from engine.model.shards import Shard


class ShardGroup:
    """One rank's connection to the others. Every rank calls the same methods in the same order.

    When a rank is gone, or later than the group's time limit, calls raise RuntimeError on the others.
    """

    def __init__(self, shard: Shard, group: Any) -> None:
        """`group` is a torch.distributed process group of `shard.size` processes."""
        self.shard = shard
        self._group = group

    def sum(self, partial: Tensor) -> None:
        """Replaces a contiguous tensor by its sum over the ranks, the same bits on all of them."""
        dist.all_reduce(partial, group=self._group)

    def gather_columns(self, part_SN: Tensor) -> Tensor | None:
        """Returns the ranks' columns side by side [S, size * N] on rank 0, None on the others."""
        shard = self.shard
        parts = [torch.empty_like(part_SN) for _ in range(shard.size)] if shard.rank == 0 else None
        dist.gather(part_SN, parts, dst=0, group=self._group)
        return None if parts is None else torch.cat(parts, dim=1)
